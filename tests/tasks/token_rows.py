"""Rows of names in sentences, and a tiny model that learns to find them."""

import json
import random
from pathlib import Path
from typing import Any

from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import EvalSpec, OptimizerSpec
from jobs.tasks.token_classification.task import TokenData
from jobs.training.config import TrainingConfig
from tests.builders import training_config

NAMES = {
    "person": (("Ada",), ("Ada", "Lovelace"), ("Bob",), ("Carol", "Smith")),
    "place": (("Paris",), ("New", "York"), ("Rome",)),
}
OTHERS = ("went", "to", "with", "saw", "and", "today", ",", "the", "old", "house")
EVAL_ROWS = 49
"""Which neither two nor three workers divide."""


def write(folder: Path, train: int = 240) -> None:
    """Write train.jsonl and eval.jsonl."""
    draw = random.Random(4)
    for split, count in (("train", train), ("eval", EVAL_ROWS)):
        lines = []
        for _ in range(count):
            tokens, tags = list[str](), list[str]()
            for _ in range(draw.randrange(1, 5)):
                kind = draw.choice(sorted(NAMES))
                name = draw.choice(NAMES[kind])
                filler = draw.choices(OTHERS, k=draw.randrange(1, 4))
                tokens += [*filler, *name]
                tags += ["O"] * len(filler) + [f"B-{kind}"] + [f"I-{kind}"] * (len(name) - 1)
            lines.append(json.dumps({"tokens": tokens, "tags": tags}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def config(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A training over these rows."""
    files = {split: folder / f"{split}.jsonl" for split in ("train", "eval")}
    sources = {split: SourceSpec(path=str(path)) for split, path in files.items()}
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, task="token-classification", dropout=0.0),
        "data": TokenData(train=sources["train"], eval=sources["eval"], max_length=48),
        "epochs": 4.0,
        "global_batch_size": 24,
        "micro_batch_size": 24,
        "optimizer": OptimizerSpec(lr=5e-3),
        "eval": EvalSpec(every=Cadence(4.0, "epoch")),
        "metrics": ("f1", "precision", "recall", "f1_macro", "accuracy"),
    }
    return training_config(folder, base, **{**values, **fields})
