"""What a job needs from elsewhere is looked at while planning: servers, buckets, the hub."""

import contextlib
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pytest

from jobs.errors import JobFileError
from jobs.storage.bucket import BucketObjects
from orchestrator import preflight
from tests.builders import MINILM, job


class Hub(http.server.BaseHTTPRequestHandler):
    """Knows the model `some/weights`, which has no configuration, and nothing else."""

    def do_GET(self) -> None:
        """Answer as the hub's API does."""
        is_known = self.path.endswith("/api/models/some/weights")
        body = {"id": "some/weights", "siblings": [{"rfilename": "weights.bin"}]}
        content = json.dumps(body if is_known else {}).encode()
        self.send_response(200 if is_known else 404)
        if not is_known:
            self.send_header("x-error-code", "RepoNotFound")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def hub() -> Iterator[str]:
    """A server that answers as the hub does."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problems(**fields: Any) -> list[str]:
    """What is missing for a job on MiniLM whose rows are said to be somewhere else."""
    try:
        preflight.check(job(**{"model__base": MINILM, **fields}))
    except JobFileError as error:
        return [f"{found.path}: {found.message}" for found in error.problems]
    return []


def test_a_job_that_needs_nothing_from_elsewhere_is_left_alone(tmp_path: Path) -> None:
    assert problems(data__train={"path": "train.csv"}, data__eval={"path": "eval.csv"}) == []


def test_servers_that_do_not_answer_and_packages_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = "http://127.0.0.1:9"
    monkeypatch.setattr(
        preflight,
        "PACKAGES",
        (("serve.grpc", "no_such_package", "grpc", lambda spec: bool(spec.serve)),),
    )
    found = problems(tracking={"mlflow": {"uri": uri}}, serve={"route": "/a", "grpc": True})
    assert (
        found[0] == "serve.grpc: needs the package no_such_package; pip install 'raywinnow[grpc]'"
    )
    assert found[1].startswith(f"tracking.mlflow.uri: no server answers at {uri}: ")
    with hub() as url:
        assert problems(tracking={"mlflow": {"uri": url}}) == []


def test_models_and_data_that_are_not_on_the_hub_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"data__train": {"path": "nobody/rows"}, "data__eval": {"path": "eval.csv"}}
    with hub() as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        assert problems(model__base="nobody/bert", **rows) == [
            "model.base: nobody/bert is not on the hub, or you have no access; name a model of"
            " transformers, or a folder such as ./nobody/bert",
            "data.train.path: nobody/rows is not on the hub, or you have no access",
        ]
        (found,) = problems(model__base="some/weights")
        assert found.startswith("model.base: some/weights has no config.json; ")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert problems(model__base="nobody/bert", **rows) == []  # workers may reach it


def test_a_base_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    shutil.copy(Path(preflight.location.locate(MINILM)) / "config.json", tmp_path)
    (found,) = problems(model__base=str(tmp_path))
    assert found.startswith("model.base: ")
    assert "tokenizer" in found


def test_rows_of_a_saved_data_set_are_looked_at(tmp_path: Path) -> None:
    for name, labels in (("train", ["no", "yes"]), ("eval", ["no", "perhaps"])):
        rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": labels})
        rows.save_to_disk(str(tmp_path / name))
    places = {f"data__{name}": {"path": f"{tmp_path}/{name}"} for name in ("train", "eval")}
    (found,) = problems(**places)
    assert found.startswith("data.label: ")
    assert "'perhaps' (1 rows), which is not among the training labels" in found
    assert problems(**places, data__text="words")[0].startswith("data.text: ")


def test_what_is_in_a_bucket_is_looked_at(bucket: str) -> None:
    BucketObjects(bucket).write("train.csv", b"text,label\na,no\nb,yes\n")
    BucketObjects(bucket).write("eval.csv", b"words,label\na,no\n")
    train, held_back = ({"path": f"{bucket}/{name}.csv"} for name in ("train", "eval"))
    assert problems(data__train=train, data__eval=train, storage=bucket) == []
    (found,) = problems(data__train=train, data__eval=held_back)
    assert (
        found == f"data.text: {bucket}/eval.csv has no column 'text'; its columns are words, label"
    )
    (found,) = problems(data__train=train, data__eval={"path": f"{bucket}/none.csv"})
    assert found.startswith("data.eval.path: ")
    assert "none.csv" in found
    (found,) = problems(data__train=train, data__eval=train, storage="s3://no-such-bucket/runs")
    assert found.startswith("storage: ")
