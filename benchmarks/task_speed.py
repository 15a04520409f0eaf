"""How fast each task trains, beside the library that its users take.

    python benchmarks/task_speed.py DATA [--only tokens ratings pairs targets deberta]
        [--seconds 8] [--out FILE]

Trains models with random weights (speed does not depend on them) on one device: bert-base at 32
rows on WNUT-17's entities, film ratings and MRPC's pairs, t5-small's shape at 32 rows on E2E, and
DeBERTa-v3-base's shape at 32 rows on film ratings. DATA and the rows are those of the scripts
`learning_*.py`, which train the same jobs. The others are transformers' Trainer, with 4 loader
workers, and sentence-transformers' trainer; each is timed right after ours, without its first 40
steps. Prints samples per second of both, their ratio, and how our steps run.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import platform
import sys
import tempfile
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402 - runs from a clone, installed or not
    learning,
    learning_embeddings,
    learning_problems,
    learning_targets,
    learning_tokens,
)
from benchmarks.hf_trainer import WARMUP_STEPS, Clock  # noqa: E402
from jobs.tasks.token_classification.tags import label_names  # noqa: E402
from jobs.training.config import TrainingConfig  # noqa: E402
from jobs.training.events import Event, Metered, Started  # noqa: E402
from jobs.training.loop import train  # noqa: E402
from jobs.training.model import location  # noqa: E402

ROWS, EPOCHS = 32, 4.0
"""Rows of an optimizer step, and epochs that Winnow trains."""
TRAINERS_EPOCHS = 1000
WORKERS = 4
Work = Callable[[Path], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """One job, as ours and as theirs."""

    config: Callable[[Path], TrainingConfig]
    theirs: Work


def main() -> int:
    """Trains each subject on both sides and prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of the other trainer")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    result: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    cuda = torch.cuda.is_available()
    result["machine"] = torch.cuda.get_device_name() if cuda else platform.processor()
    print("task\tours samples/s\ttheirs\tratio\tours runs", flush=True)
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as place, MAKERS[name](arguments.data, Path(place)) as s:
            ours, mode = rate_of_ours(s, Path(place) / "ours")
            theirs = rate_of_theirs(s, Path(place) / "theirs", arguments.seconds)
        result[name] = {"ours": ours, "theirs": theirs, "ratio": ours / theirs, "mode": mode}
        print(f"{name}\t{ours:.0f}\t{theirs:.0f}\t{ours / theirs:.1f}\t{mode}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def rate_of_ours(subject: Subject, folder: Path) -> tuple[float, str]:
    """Samples per second of steady steps, and how they run."""
    folder.mkdir()
    events: list[Event] = []
    train(dataclasses.replace(subject.config(folder), epochs=EPOCHS), events.append)
    metered = next(event for event in events if isinstance(event, Metered))
    started = next(event for event in events if isinstance(event, Started))
    return metered.samples_per_s, started.mode


def rate_of_theirs(subject: Subject, folder: Path, seconds: float) -> float:
    """Samples per second after the first steps."""
    folder.mkdir()
    clock = Clock(seconds, WARMUP_STEPS)
    with timed_by(clock):
        subject.theirs(folder)
    return clock.steps * ROWS / clock.elapsed


@contextlib.contextmanager
def timed_by(clock: Clock) -> Iterator[None]:
    """Adds the clock and loader workers to every trainer of transformers' kind."""

    def patched(library: Any, name: str) -> Any:
        made = functools.partial(getattr(library, name), dataloader_num_workers=WORKERS)

        def arguments(**fields: Any) -> Any:
            return made(**{**fields, "num_train_epochs": TRAINERS_EPOCHS})

        return unittest.mock.patch.object(library, name, arguments)

    callbacks = [*transformers.trainer.DEFAULT_CALLBACKS, clock]
    with (
        unittest.mock.patch.object(transformers.trainer, "DEFAULT_CALLBACKS", callbacks),
        patched(transformers, "TrainingArguments"),
        patched(transformers, "Seq2SeqTrainingArguments"),
        patched(sentence_transformers, "SentenceTransformerTrainingArguments"),
    ):
        yield


def base(folder: Path, config: Any) -> str:
    """A model with random weights and MiniLM's words."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(location.locate(learning.MINILM))
    place = folder / config.model_type
    config.vocab_size = len(tokenizer)
    transformers.AutoModel.from_config(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


@contextlib.contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Replaces constants of a module until the context ends."""
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(unittest.mock.patch.object(module, name, value))
        yield


@contextlib.contextmanager
def tokens(data: Path, folder: Path) -> Iterator[Subject]:
    """Entities of WNUT-17, bert-base."""
    made = base(folder, transformers.BertConfig())
    train_rows = learning_tokens.sentences(data / "wnut17/train.conll")
    eval_rows = learning_tokens.sentences(data / "wnut17/dev.conll")
    names = label_names([tags for _, tags in train_rows])
    subject = learning_tokens.Subject(train_rows, eval_rows, names, EPOCHS)
    with changed(learning_tokens, MINILM=made, BATCH=ROWS):
        yield Subject(
            lambda place: learning_tokens.configured(subject, 0, place),
            lambda place: learning_tokens.theirs(subject, 0, place),
        )


def numbers(config: Callable[[], Any]) -> Any:
    """Film ratings, for a model of some shape."""

    @contextlib.contextmanager
    def ratings(data: Path, folder: Path) -> Iterator[Subject]:
        rows = learning_problems.ratings(data, folder)
        subject = dataclasses.replace(rows, base=base(folder, config()), batch=ROWS)
        yield Subject(
            lambda place: learning.configured(subject, 0, place),
            lambda place: learning.theirs(subject, 0, place, 0),
        )

    return ratings


@contextlib.contextmanager
def pairs(data: Path, folder: Path) -> Iterator[Subject]:
    """Paraphrases of MRPC, bert-base."""
    made = base(folder, transformers.BertConfig())
    subject = learning_embeddings.made(data, "pairs", (10**6, 64))
    with (
        changed(learning_embeddings, BATCH=ROWS, location_of_base=lambda: Path(made)),
        changed(learning, MINILM=made),
    ):
        yield Subject(
            lambda place: learning_embeddings.configured(subject, 0, place),
            lambda place: learning_embeddings.theirs(subject, 0, place),
        )


@contextlib.contextmanager
def targets(data: Path, folder: Path) -> Iterator[Subject]:
    """Facts to sentences of E2E, t5-small's shape."""
    small = functools.partial(
        transformers.T5Config, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8
    )

    def shape(**fields: Any) -> Any:
        return small(**{name: fields[name] for name in fields if name.endswith(("_id", "size"))})

    with changed(transformers, T5Config=shape):
        subject = learning_targets.e2e(data, folder, 10**6)
    with changed(learning_targets, BATCH=ROWS):
        yield Subject(
            lambda place: learning_targets.configured(subject, 0, place),
            lambda place: learning_targets.theirs(subject, 0, place),
        )


def deberta() -> Any:
    """DeBERTa-v3-base's shape."""
    return transformers.DebertaV2Config(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1,
        position_biased_input=False,
        type_vocab_size=0,
        pooler_hidden_size=768,
    )


MAKERS: dict[str, Any] = {
    "tokens": tokens,
    "ratings": numbers(transformers.BertConfig),
    "pairs": pairs,
    "targets": targets,
    "deberta": numbers(deberta),
}

if __name__ == "__main__":
    sys.exit(main())
