"""gRPC for tasks with texts in and tensors out: the Open Inference Protocol, behind Ray Serve.

Needs `pip install 'raywinnow[grpc]'`: the messages are those of NVIDIA's client for the protocol.
"""

import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc

from jobs.errors import DeployError
from serve.http import app
from serve.http.errors import HttpError
from serve.http.guard import MAX_BODY_BYTES, timeout_of, too_large
from serve.http.open_inference import InferRequest, InferResponse, Tensor, named, server_metadata

ADD = "serve.frontends.grpc_api.add"
"""Adds the protocol to a server of gRPC, by its name."""
SERVICE = "inference.GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What a status of HTTP is in gRPC."""
ASK_S = 5.0
"""How long a call that looks whether an application is there may take."""
_LENGTH = struct.Struct("<I")


def messages() -> Any:
    """The protocol's messages; DeployError without the package that has them."""
    try:
        from tritonclient.grpc import service_pb2
    except ImportError:
        raise DeployError(
            "serve.grpc is set, but its messages are missing where the endpoint runs:"
            " pip install 'raywinnow[grpc]'"
        ) from None
    return service_pb2


def add(servicer: Any, server: Any) -> None:
    """Let a server of gRPC take the calls of the protocol; others are unimplemented."""
    found = messages()
    names = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata")
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            request_deserializer=getattr(found, f"{name}Request").FromString,
            response_serializer=getattr(found, f"{name}Response").SerializeToString,
        )
        for name in (*names, "ModelInfer")
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def answers(address: str, timeout_s: float) -> bool:
    """Whether a server of gRPC answers at an address within some time."""
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            return False
    return True


def is_ready(address: str, application: str) -> bool:
    """Whether an application of Ray Serve answers at an address."""
    found = messages()
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/ServerReady",
            request_serializer=found.ServerReadyRequest.SerializeToString,
            response_deserializer=found.ServerReadyResponse.FromString,
        )
        metadata = (("application", application),)
        try:
            return bool(ask(found.ServerReadyRequest(), timeout=ASK_S, metadata=metadata).ready)
        except grpc.RpcError:
            return False


class GrpcSurface:
    """The protocol's calls, answered by the server of this process."""

    async def ServerLive(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Whether the process answers."""
        return messages().ServerLiveResponse(live=True)

    async def ServerReady(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Whether the model answers."""
        return messages().ServerReadyResponse(ready=app.find() is not None)

    async def ServerMetadata(self, _: Any, grpc_context: Any) -> Any:  # noqa: N802
        """What this is."""

        async def work() -> Any:
            return messages().ServerMetadataResponse(**server_metadata())

        return await _answered("ServerMetadata", grpc_context, work)

    async def ModelReady(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Whether this model answers."""

        async def work() -> Any:
            named(request.name, request.version)
            return messages().ModelReadyResponse(ready=True)

        return await _answered("ModelReady", grpc_context, work)

    async def ModelMetadata(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """What the model takes and gives."""

        async def work() -> Any:
            found = named(request.name, request.version).metadata()
            return messages().ModelMetadataResponse(**found.model_dump())

        return await _answered("ModelMetadata", grpc_context, work)

    async def ModelInfer(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Label the texts of the tensor `text`."""

        async def work() -> Any:
            if request.ByteSize() > MAX_BODY_BYTES:
                raise too_large()
            handler = named(request.model_name, request.model_version)
            headers = {k.encode(): v.encode() for k, v in _metadata(grpc_context).items()}
            found = await handler.infer(body_of(request), timeout_of(headers))
            return answer_of(found, is_raw=bool(request.raw_input_contents))

        return await _answered("ModelInfer", grpc_context, work)


async def _answered(method: str, context: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """What some work comes to, for those who may ask; else the reason in the call's status."""
    server = app.ready()
    status, detail = 200, ""
    try:
        caller = server.access.name_of(_metadata(context).get("authorization", ""))
        if caller is None:
            message = "send an accepted token as metadata: authorization, Bearer …"
            raise HttpError(401, "unauthorized", message)
        if caller:
            server.metrics.count_caller(caller)
        return await work()
    except HttpError as refusal:
        status, detail = refusal.status, refusal.message
    except Exception:  # noqa: BLE001 - no trace reaches a client
        status, detail = 500, "something went wrong here"
    finally:
        server.metrics.count(f"grpc {method}", status)
    context.set_code(CODES.get(status, grpc.StatusCode.INTERNAL))
    context.set_details(detail)
    return getattr(messages(), f"{method}Response")()


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}


def body_of(request: Any) -> InferRequest:
    """A call's message as what HTTP would have brought; HttpError."""
    inputs = request.inputs
    if not 1 <= len(inputs) <= 2:
        raise HttpError(422, "invalid_request", "the model takes one or two inputs")
    raw = request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise HttpError(422, "invalid_request", "raw_input_contents must be one for each input")
    columns = [
        list(_pieces(raw[index])) if raw else list(tensor.contents.bytes_contents)
        for index, tensor in enumerate(inputs)
    ]
    return InferRequest(
        id=request.id[:128] or None,
        inputs=[
            Tensor(
                name=tensor.name,
                shape=list(tensor.shape),
                datatype=tensor.datatype,
                data=_texts(column),
            )
            for tensor, column in zip(inputs, columns, strict=True)
        ],
    )


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Strings, each behind its length in four bytes."""
    at = 0
    while at < len(raw):
        begin = at + _LENGTH.size
        end = begin + _LENGTH.unpack_from(raw, at)[0] if begin <= len(raw) else len(raw) + 1
        if end > len(raw):
            message = "raw_input_contents must be strings, each behind its length in four bytes"
            raise HttpError(422, "invalid_request", message)
        yield raw[begin:end]
        at = end


def _texts(column: Sequence[bytes]) -> list[str]:
    try:
        return [piece.decode() for piece in column]
    except UnicodeDecodeError:
        raise HttpError(422, "invalid_request", "texts must be UTF-8") from None


def answer_of(found: InferResponse, *, is_raw: bool) -> Any:
    """An answer as the protocol's message, in the form in which texts came."""
    kinds = messages()
    made = kinds.ModelInferResponse(
        id=found.id or "", model_name=found.model_name, model_version=found.model_version
    )
    for tensor in found.outputs:
        output = made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        is_text = tensor.datatype == "BYTES"
        if is_raw and is_text:
            encoded = [text.encode() for text in tensor.data]
            made.raw_output_contents.append(
                b"".join(_LENGTH.pack(len(piece)) + piece for piece in encoded)
            )
        elif is_raw:
            made.raw_output_contents.append(struct.pack(f"<{len(tensor.data)}f", *tensor.data))
        elif is_text:
            output.contents.bytes_contents.extend(text.encode() for text in tensor.data)
        else:
            output.contents.fp32_contents.extend(tensor.data)
    return made
