"""Sentences with two words in them, and targets that name the words in the other order."""

import json
import random
from pathlib import Path
from typing import Any

import transformers

from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.tasks.seq2seq.task import Seq2SeqData
from jobs.training.config import TrainingConfig
from orchestrator.records import registry
from serve.version import ModelVersion
from tests import tiny
from tests.builders import job, training_config

WORDS = ("superb", "moving", "dull", "awful")
TASK, PREFIX = "seq2seq", "name: "
TRAIN_ROWS, EVAL_ROWS = 128, 37
"""No number of workers up to 36 divides the evaluation rows."""


def write(folder: Path) -> Path:
    """Writes train.jsonl, and eval.jsonl with one or two references a row; returns the folder."""
    draw = random.Random(3)
    for name, count in (("train", TRAIN_ROWS), ("eval", EVAL_ROWS)):
        lines = []
        for index in range(count):
            one, other = draw.choice(WORDS), draw.choice(WORDS)
            source = f"a {one} film {'indeed ' * draw.randrange(3)}is {other}"
            target: Any = f"it is {other} and {one}"
            if name == "eval":
                target = [target, f"it is so {other} and {one}"][: 1 + index % 2]
            lines.append(json.dumps({"facts": source, "sentence": target}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def base_of(folder: Path, kind: str, **fields: Any) -> str:
    """A tiny encoder-decoder model with random weights and the tokenizer of `tests.tiny`."""
    return tiny.save(folder / kind, kind, transformers.AutoModelForSeq2SeqLM, **fields)


def data_of(folder: Path, **fields: Any) -> Seq2SeqData:
    """A data section over the rows in a folder."""
    values: dict[str, Any] = {
        "source": "facts",
        "target": "sentence",
        "prefix": PREFIX,
        "max_length": 48,
        "max_target_length": 24,
    }
    return Seq2SeqData(
        train=SourceSpec(path=str(folder / "train.jsonl")),
        eval=SourceSpec(path=str(folder / "eval.jsonl")),
        **{**values, **fields},
    )


def config_of(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A run over the rows in a folder."""
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, task=TASK, dropout=0.0),
        "data": data_of(folder),
        "global_batch_size": 16,
        "micro_batch_size": 16,
        "optimizer": OptimizerSpec(lr=1e-2),
        "metrics": ("perplexity", "token_accuracy"),
    }
    return training_config(folder, base, **{**values, **fields})


def published(config: TrainingConfig, reference: Any, folder: Path) -> ModelVersion:
    """Publishes a checkpoint of a run."""
    spec = job(data__max_length=config.data.max_length)
    spec = spec.model_copy(update={"model": config.model, "data": config.data})
    return registry.publish(spec, reference, (), run_id="test", storage=open_storage(folder))


def plain_texts(folder: Path | str, sources: list[str], **settings: Any) -> list[str]:
    """What transformers writes with a published folder, one source after the other."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    prefix = model.config.prefix or ""
    texts = []
    for source in sources:
        inputs = tokenizer(prefix + source, return_tensors="pt", truncation=True)
        written = model.generate(**inputs, **settings)
        texts += tokenizer.batch_decode(written, skip_special_tokens=True)
    return texts
