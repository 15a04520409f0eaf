"""The Open Inference Protocol over gRPC, called by NVIDIA's client."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from serve.batching.client import QueueFullError
from serve.config import ReplicaConfig
from serve.frontends import grpc_api
from serve.http import app
from serve.http.auth import digest
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.version import ModelVersion
from tests.builders import eventually

TOKEN = "a token of somebody"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def server(version: ModelVersion) -> Iterator[ClassificationHandler]:
    config = ReplicaConfig(version, engine="torch-fp32", token_hashes=(digest(TOKEN),))
    made = load(config)
    app.install(made)
    yield made
    made.client.close()
    app._current.clear()


@pytest.fixture(scope="module")
def address(server: ClassificationHandler) -> Iterator[str]:
    """A client of a real gRPC server with our methods."""
    loop, found = asyncio.new_event_loop(), list[Any]()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def begin() -> int:
        made = grpc.aio.server()
        grpc_api.add(grpc_api.GrpcSurface(), made)
        port = made.add_insecure_port("127.0.0.1:0")
        await made.start()
        found.append(made)
        return int(port)

    port = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    yield f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(found[0].stop(1), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)


@pytest.fixture
def client(address: str) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    with tritonclient.grpc.InferenceServerClient(address) as made:
        yield made


def texts(*values: str) -> list[tritonclient.grpc.InferInput]:
    tensor = tritonclient.grpc.InferInput("text", [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode() for value in values], dtype=np.object_))
    return [tensor]


def code_of(failure: pytest.ExceptionInfo[InferenceServerException]) -> str:
    return str(failure.value.status())


def test_it_says_what_it_is(client: Any, server: ClassificationHandler) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata(headers=HEADERS).name == "winnow"
    name = server.config.version.name
    assert client.is_model_ready(name, server.config.version.id, headers=HEADERS)
    found = client.get_model_metadata(name, headers=HEADERS)
    assert [(t.name, t.datatype, list(t.shape)) for t in found.inputs] == [("text", "BYTES", [-1])]
    assert list(found.outputs[2].shape) == [-1, 2]


def test_texts_are_labelled_as_over_http(client: Any, server: ClassificationHandler) -> None:
    name = server.config.version.name
    found = client.infer(name, texts("a superb film", "a dull film"), headers=HEADERS)
    assert found.as_numpy("label").tolist() == [b"positive", b"negative"]
    expected = asyncio.run(server.score([("a superb film",), ("a dull film",)], 10)).scores
    assert found.as_numpy("scores") == pytest.approx(np.array(expected), abs=1e-6)
    assert found.get_response().model_version == server.config.version.id


def test_texts_in_typed_contents_are_answered_in_them(
    address: str, server: ClassificationHandler
) -> None:
    contents = service_pb2.InferTensorContents(bytes_contents=[b"a superb film"])
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name="text", datatype="BYTES", shape=[1], contents=contents
    )
    request = service_pb2.ModelInferRequest(
        model_name=server.config.version.name, id="mine", inputs=[tensor]
    )
    with grpc.insecure_channel(address) as channel:
        infer = channel.unary_unary(
            f"/{grpc_api.SERVICE}/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        found = infer(request, metadata=tuple(HEADERS.items()), timeout=10)
    assert found.id == "mine"
    assert list(found.outputs[0].contents.bytes_contents) == [b"positive"]
    assert found.outputs[1].contents.fp32_contents[0] > 0.5
    assert not found.raw_output_contents


@pytest.mark.parametrize(
    ("name", "inputs", "headers", "code"),
    [
        ("reviews", texts("a film"), {}, "UNAUTHENTICATED"),
        ("reviews", texts("a film"), {"authorization": "Bearer no"}, "UNAUTHENTICATED"),
        ("other", texts("a film"), HEADERS, "NOT_FOUND"),
        ("reviews", texts("x" * 9000), HEADERS, "INVALID_ARGUMENT"),
        ("reviews", texts(*["x" * 8000] * 200), HEADERS, "RESOURCE_EXHAUSTED"),
        ("reviews", [*texts("a"), *texts("b")], HEADERS, "INVALID_ARGUMENT"),
        ("reviews", [], HEADERS, "INVALID_ARGUMENT"),
        (
            "reviews",
            texts("a"),
            {**HEADERS, "x-request-timeout-seconds": "soon"},
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_grpcs_own_codes(
    client: Any,
    server: ClassificationHandler,
    name: str,
    inputs: Any,
    headers: dict[str, str],
    code: str,
) -> None:
    name = server.config.version.name if name == "reviews" else name
    with pytest.raises(InferenceServerException) as failure:
        client.infer(name, inputs, headers=headers)
    assert code in code_of(failure)


@pytest.mark.parametrize("raw", [b"\x05\x00", b"\x05\x00\x00\x00abc", b"\x01\x00\x00\x00\xff"])
def test_broken_bytes_are_refused(client: Any, server: ClassificationHandler, raw: bytes) -> None:
    tensor = texts("a")[0]
    tensor._raw_content = raw
    with pytest.raises(InferenceServerException) as failure:
        client.infer(server.config.version.name, [tensor], headers=HEADERS)
    assert "INVALID_ARGUMENT" in code_of(failure)


def counted(server: ClassificationHandler, status: int) -> float:
    """Calls of ModelInfer that the metrics have with a status."""
    wanted = {"path": "grpc ModelInfer", "status": str(status)}
    return sum(value for _, value, found in server.metrics.samples(server.load) if found == wanted)


def test_a_failure_is_logged_here_and_not_told_to_the_client(
    client: Any,
    server: ClassificationHandler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(server, "tensors", broken)
    before = counted(server, 500)
    with pytest.raises(InferenceServerException) as failure:
        client.infer(server.config.version.name, texts("a"), headers=HEADERS)
    assert "INTERNAL" in code_of(failure)
    assert "secret" not in str(failure.value)
    assert caplog.text.count("RuntimeError: the secret reason") == 1
    assert counted(server, 500) == before + 1


def test_a_call_that_its_client_ends_is_not_counted_as_answered(
    client: Any, server: ClassificationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun, is_over = server.client.launch, threading.Event(), threading.Event()

    def slowly(rows: Any) -> Any:
        begun.set()
        is_over.wait(60)
        return run(rows)

    monkeypatch.setattr(server.client, "launch", slowly)
    before = counted(server, 200)
    told, name = queue.SimpleQueue[Any](), server.config.version.name
    call = client.async_infer(
        name, texts("a"), lambda result, error: told.put(error), headers=HEADERS
    )
    try:
        assert begun.wait(60)
        call.cancel()
        assert isinstance(told.get(timeout=60), InferenceServerException)
        assert eventually(lambda: counted(server, 499) == 1)
    finally:
        is_over.set()
    assert counted(server, 200) == before


@pytest.mark.usefixtures("server")
def test_a_replica_that_is_still_loading_is_unavailable(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_current", [])
    with pytest.raises(InferenceServerException, match="still being loaded") as failure:
        client.get_server_metadata(headers=HEADERS)
    assert "UNAVAILABLE" in code_of(failure)


def test_full_queues_late_answers_and_faults(
    client: Any, server: ClassificationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise QueueFullError(3)

    def broken(*_: Any) -> Any:
        raise RuntimeError("the secret reason")

    name = server.config.version.name
    for fault, code in ((full, "UNAVAILABLE"), (broken, "INTERNAL")):
        with monkeypatch.context() as patch:
            patch.setattr(server.client, "submit", fault)
            with pytest.raises(InferenceServerException) as failure:
                client.infer(name, texts("a"), headers=HEADERS)
        assert code in code_of(failure)
        assert "secret" not in str(failure.value)
    run, is_over = server.client.launch, threading.Event()

    def slowly(rows: Any) -> Any:
        is_over.wait(60)
        return run(rows)

    monkeypatch.setattr(server.client, "launch", slowly)
    with pytest.raises(InferenceServerException) as failure:
        client.infer(name, texts("a"), headers={**HEADERS, "x-request-timeout-seconds": "0.05"})
    assert "DEADLINE_EXCEEDED" in code_of(failure)
    is_over.set()
    counted = {found.get("path") for _, _, found in server.metrics.samples(server.load)}
    assert "grpc ModelInfer" in counted
