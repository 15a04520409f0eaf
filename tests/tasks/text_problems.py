"""Rows with several labels and with numbers, and models that are trained on them and published."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from serve.version import ModelVersion
from tests.builders import job, training_config

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
        "epochs": 10.0,
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


def trained(config: TrainingConfig, folder: Path) -> Trained:
    """Trains, proves and publishes a model."""
    events: list[Event] = []
    reference = train(config, events.append, folder / "checkpoints", proves=True)
    labels = next(event.labels for event in events if isinstance(event, Started))
    spec = job(name="films").model_copy(update={"data": config.data})
    version = registry.publish(spec, reference, labels, run_id="test", storage=open_storage(folder))
    return Trained(spec, events, reference, version)
