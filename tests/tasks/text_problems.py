"""Rows with several labels and with numbers, and models that are trained on them and published."""

import asyncio
import atexit
import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import hypothesis.strategies as st

from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import EvalSpec, OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.config import TrainingConfig
from jobs.training.events import CheckpointRef, Evaluated, Event, Started
from jobs.training.loop import train
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.comparison import Comparison
from serve.tasks.registry import endpoint_of
from serve.tools import load_generator
from serve.version import ModelVersion
from tests.builders import job, training_config
from tests.serve.live import on_socket

HTTP = httpx.Client(timeout=60)
"""Keeps its connections: making a client for each request takes most of a test's time."""
atexit.register(HTTP.close)
TRAIN_ROWS, EVAL_ROWS = 160, 53
"""53 evaluation rows: no number of workers from 2 to 4 divides them."""
WORDS = {"funny": "hilarious", "sad": "tearful", "long": "endless", "rare": "peculiar"}
"""Label, and the word that stands for it."""
WORTH = {"superb": 3.0, "fine": 1.0, "dull": -1.0, "awful": -3.0}
"""Word, and what it adds to the rating of a text."""


def label_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with the labels of their words; a third has none, and one label is rare."""
    draw = random.Random(seed)
    rows = []
    for index in range(count):
        found = [name for name in ("funny", "sad", "long") if draw.random() < 0.35]
        found += ["rare"] if index % 25 == 3 else []
        words = " ".join(WORDS[name] for name in found)
        text = f"a {words} film {'indeed ' * draw.randrange(4)}".strip()
        rows.append({"text": text, "labels": found, **{n: int(n in found) for n in WORDS}})
    return rows


def number_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with a rating around 1000, a length in words, and noise."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices(list(WORTH), k=draw.randrange(1, 4))
        rating = 1000 + 20 * sum(WORTH[word] for word in words) + draw.uniform(-5, 5)
        rows.append({"text": f"a {' '.join(words)} film", "rating": rating, "words": len(words)})
    return rows


def write(folder: Path, make: Any) -> Path:
    """Writes train.jsonl and eval.jsonl into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count, seed in (("train", TRAIN_ROWS, 1), ("eval", EVAL_ROWS, 2)):
        lines = [json.dumps(row) for row in make(count, seed)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def data_of(folder: Path, **fields: Any) -> ClassificationData:
    """A data section over the files that `write` makes."""
    values: dict[str, Any] = {"text": "text", "max_length": 24, **fields}
    return ClassificationData(
        train=SourceSpec(path=str(folder / "train.jsonl")),
        eval=SourceSpec(path=str(folder / "eval.jsonl")),
        **values,
    )


def config_of(data: ClassificationData, base: str, **fields: Any) -> TrainingConfig:
    """A configuration that learns these rows in seconds."""
    values: dict[str, Any] = {
        "data": data,
        "epochs": 15.0,
        "global_batch_size": 16,
        "micro_batch_size": 16,
        "optimizer": OptimizerSpec(lr=5e-3),
        "eval": EvalSpec(every=Cadence(5.0, "epoch")),
        **fields,
    }
    return training_config(Path(), base, **values)


@dataclass(frozen=True, slots=True)
class Trained:
    """A published model, and what its training reported."""

    spec: JobSpec
    events: list[Event]
    checkpoint: CheckpointRef
    version: ModelVersion

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return [event.metrics for event in self.events if isinstance(event, Evaluated)][-1]


@contextlib.contextmanager
def served(version: ModelVersion, engine: Any) -> Iterator[str]:
    """The URL of an endpoint of a version, whose engine scores as training did."""
    endpoint = endpoint_of(version.task)
    handler: Any = endpoint.load(ReplicaConfig(version, engine=engine))
    app.install(handler)
    try:
        assert (handler.choice.engine, handler.choice.trials[0].refusal) == (engine, "")
        application = app.guarded(endpoint.application())
        with on_socket(application, connections(app.current_handler)) as url:
            yield url
    finally:
        handler.client.close()
        app._current.clear()


def answer(url: str, body: Any) -> httpx.Response:
    """The endpoint's answer to the body of a predict request."""
    return HTTP.post(f"{url}/predict", json=body)


def compared(version: ModelVersion, url: str) -> Comparison:
    """A version beside itself, at its endpoint."""

    def ask(_: ModelVersion, body: Any) -> Any:
        return answer(url, body).json()

    found, texts = endpoint_of(version.task).compare(version, version, ask)
    assert found is not None
    assert len(texts) == EVAL_ROWS
    return found


def outputs_of(url: str, texts: list[str]) -> dict[str, Any]:
    """The tensors that the Open Inference Protocol gives of texts, by name."""
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    reply = httpx.post(f"{url}/v2/models/films/infer", json={"inputs": [tensor]}).json()
    return {output["name"]: output for output in reply["outputs"]}


WORDS_OF_SCRIPTS = (
    *("film", "hilarious", "tearful", "superb", "awful", "größe", "ça", "фильм", "長い映画"),
    *("영화", "चलचित्र", "فيلم", "ταινία", "😀", "naïve", "[SEP]", "<b>", "1,000", "\t", "é"),
)
MADE_UP = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
BODIES = st.one_of(
    MADE_UP,
    st.fixed_dictionaries(
        {"inputs": MADE_UP}, optional={"top_k": MADE_UP, "truncate": MADE_UP, "more": MADE_UP}
    ),
    st.fixed_dictionaries(
        {"inputs": st.lists(st.text(max_size=60), max_size=3)},
        optional={"top_k": st.integers(-1, 2000)},
    ),
)
"""Bodies of requests, most of which an endpoint has to refuse."""


def mixed_texts(count: int) -> list[str]:
    """Texts of 0 to 60 words in several scripts, which are cut at 24 tokens."""
    draw = random.Random(9)
    lengths = [index % 12 if index % 10 else 60 for index in range(count)]
    return [" ".join(draw.choices(WORDS_OF_SCRIPTS, k=length)) for length in lengths]


def statuses_of_made_up_requests(url: str) -> set[int]:
    """Statuses of requests with bodies that hypothesis makes up."""
    found = set()

    @hypothesis.settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @hypothesis.given(body=BODIES)
    def ask(body: Any) -> None:
        content = json.dumps(body)
        headers = {"content-type": "application/json"}
        reply = HTTP.post(f"{url}/predict", content=content, headers=headers)
        found.add(reply.status_code)

    ask()
    return found


def failed_under_load(url: str, texts: list[str]) -> int:
    """Requests of a short load test that fail; it makes at least one."""
    plan = load_generator.Plan(url, 0.3, concurrency=2, texts_per_request=3)
    result = asyncio.run(load_generator.run(plan, texts))
    assert result.requests > 0
    return result.failed


def trained(config: TrainingConfig, folder: Path) -> Trained:
    """Trains, proves and publishes a model."""
    events: list[Event] = []
    reference = train(config, events.append, folder / "checkpoints", proves=True)
    labels = next(event.labels for event in events if isinstance(event, Started))
    spec = job(name="films").model_copy(update={"data": config.data})
    version = registry.publish(spec, reference, labels, run_id="test", storage=open_storage(folder))
    return Trained(spec, events, reference, version)
