"""Rows in S3, the token cache, and checkpoints that are kept."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, EvalSpec, OptimizerSpec
from jobs.storage import files
from jobs.training.corpus import load_corpus
from jobs.training.data import sources
from jobs.training.events import Evaluated, Event
from jobs.training.loop import train
from tests.builders import training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ROWS = b"text,label\nfine,1\nbad,0\n"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """A small HTTP server that speaks as much S3 as reading takes; keys to contents."""
    objects: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, *, with_body: bool) -> None:
            content = objects.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("ETag", f'"{hash(content)}"')
            self.end_headers()
            if with_body and content:
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "WINNOW_HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(name, value)
    yield objects
    server.shutdown()
    thread.join()
    server.server_close()


def test_rows_come_from_s3_and_are_fetched_again_when_they_change(
    bucket: dict[str, bytes],
) -> None:
    source = SourceSpec(path="s3://data/rows/train.csv")
    bucket["/data/rows/train.csv"] = ROWS
    assert sources.read(source).values("text") == ["fine", "bad"]
    bucket["/data/rows/train.csv"] = ROWS + b"new,1\n"
    assert sources.read(source).values("text") == ["fine", "bad", "new"]


def test_an_object_that_is_not_there_is_named(bucket: dict[str, bytes]) -> None:
    with pytest.raises(DataError, match=r"s3://data/none\.csv cannot be read: Not Found"):
        sources.read(SourceSpec(path="s3://data/none.csv"))


def test_rows_are_tokenised_once_for_each_content_and_setting(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))
    told: list[str] = []

    def load(**fields: object) -> None:
        told.clear()
        load_corpus(training_config(reviews, tiny_model, **fields), lambda s, *_: told.append(s))

    load()
    assert told == ["train", "eval"]
    load()
    assert told == []
    shorter = training_config(reviews, tiny_model).data.model_copy(update={"max_length": 8})
    load(data=shorter)
    assert told == ["train", "eval"]
    load(data=shorter)
    assert told == []


def test_a_torn_cache_file_is_made_again(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))
    config = training_config(reviews, tiny_model)
    expected = load_corpus(config).train.lengths.tolist()
    for path in (files.cache_folder() / "tokens").glob("*.arrow"):
        path.write_bytes(path.read_bytes()[:100])
    assert load_corpus(config).train.lengths.tolist() == expected


def test_the_best_checkpoint_outlives_newer_ones(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """A learning rate that first teaches and then destroys makes an early one the best."""
    config = training_config(
        reviews,
        tiny_model,
        epochs=8.0,
        optimizer=OptimizerSpec(lr=3e-2, max_grad_norm=1000.0),
        eval=EvalSpec(every=Cadence(4, "step")),
        checkpoint=CheckpointSpec(every=Cadence(4, "step"), keep=1),
    )
    events: list[Event] = []
    train(config, events.append, tmp_path)
    scores = {e.step: e.metrics["accuracy"] for e in events if isinstance(e, Evaluated)}
    kept = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
    assert 40 in kept
    assert max(scores[step] for step in kept) == max(scores.values())
    assert len(kept) <= 2
