"""Rows of pairs, triplets and scored pairs, made of words, and a published tiny model of them."""

import csv
import random
from pathlib import Path
from typing import Any

from jobs.loader import load
from jobs.spec import JobSpec, task_registry
from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.tasks.sentence_embedding.task import EmbeddingData
from jobs.training.config import TrainingConfig
from jobs.training.events import Event
from jobs.training.loop import train
from orchestrator.records import registry
from serve.version import ModelVersion
from tests.builders import training_config

TASK = "sentence-embedding"
NOUNS = ("dog", "cat", "car", "tree", "house", "river", "bird", "stone", "book", "lamp")
VERBS = ("runs", "sleeps", "falls", "shines", "breaks", "sings", "moves", "rests")
TRAIN_ROWS, EVAL_ROWS = 96, 37
"""No number of workers divides the evaluation rows."""
PAIRS = {"anchor": "a", "positive": "b"}
TRIPLETS = {**PAIRS, "negative": "c"}
SCORED = {"text": ["a", "b"], "score": "s", "highest_score": 5}


def write_rows(folder: Path) -> Path:
    """Writes train.csv and eval.csv with the columns a, b, c and s; some texts occur twice."""
    draw = random.Random(1)
    for split, count in (("train", TRAIN_ROWS), ("eval", EVAL_ROWS)):
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(("a", "b", "c", "s"))
            for _ in range(count):
                noun, other, verb = draw.choice(NOUNS), draw.choice(NOUNS), draw.choice(VERBS)
                positive = f"a {noun} that {verb} {'now ' * draw.randrange(4)}"
                score = round(draw.random() * 5, 2)
                writer.writerow((f"the {noun} {verb}", positive, f"the {other} {verb}", score))
    return folder


def data_of(folder: Path, **fields: Any) -> EmbeddingData:
    """A data section over the rows of a folder."""
    sources = {split: SourceSpec(path=str(folder / f"{split}.csv")) for split in ("train", "eval")}
    return EmbeddingData(**sources, **{"max_length": 32, **fields})


def config_of(folder: Path, base: str, data: EmbeddingData, **fields: Any) -> TrainingConfig:
    """A configuration of a run over the rows of a folder."""
    values: dict[str, Any] = {
        "data": data,
        "model": ModelSpec(base=base, task=TASK, dropout=0.0),
        "metrics": task_registry.chosen(TASK, data.variant).metric_names,
        "epochs": 2.0,
        "optimizer": OptimizerSpec(lr=5e-3),
        "global_batch_size": 16,
        "micro_batch_size": 16,
    }
    return training_config(folder, base, **{**values, **fields})


def spec_of(folder: Path, base: str, **fields: Any) -> JobSpec:
    """The job of a run, for publishing."""
    path = folder / "job.yaml"
    rows = {split: {"path": str(folder / f"{split}.csv")} for split in ("train", "eval")}
    job = {
        "version": 1,
        "name": "sentences",
        "model": {"base": base, "task": TASK},
        "data": {**rows, "max_length": 32, **fields},
    }
    import yaml

    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return load(path)


def publish(
    folder: Path, base: str, events: list[Event], *, proves: bool = False, **fields: Any
) -> ModelVersion:
    """Trains on the rows of a folder and publishes the model."""
    data = data_of(folder, **fields)
    place = folder / f"run-{len(list(folder.iterdir()))}"
    config = config_of(folder, base, data)
    reference = train(config, events.append, place / "checkpoints", proves=proves)
    spec = spec_of(folder, base, **fields)
    return registry.publish(spec, reference, (), run_id="test", storage=open_storage(place))
