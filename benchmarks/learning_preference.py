"""Whether preference learns as well as a plain DPO loop: the same rows, batches and rates.

    python benchmarks/learning_preference.py DATA [--seeds 3] [--rows 2000] [--out FILE]

DATA holds `e2e/train.csv` and `e2e/test.csv` of the E2E data set, which has several sentences for
the same facts. A small Llama from random weights learns to write them first. Then it learns to
prefer the shorter of two sentences for the same facts, with Winnow and with a loop in plain PyTorch
that keeps a copy of the base beside the model. Each seed draws the order of the rows, for both.
Both saved models are judged by the same loop: the loss, the mean margin between both rewards, and
how often the shorter sentence has the larger one. Prints mean and standard deviation over the
seeds, and whether the difference of the means is one that chance makes (Student's t-test at 1 %).
"""

import argparse
import copy
import dataclasses
import itertools
import json
import random
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
from benchmarks.learning import CHANCE_T, DEVICE, Row, Scores, compared, table  # noqa: E402
from benchmarks.learning_targets import tokenizer_of  # noqa: E402
from jobs.spec.data import SourceSpec  # noqa: E402
from jobs.spec.model import ModelSpec  # noqa: E402
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec  # noqa: E402
from jobs.tasks.preference.task import PreferenceData  # noqa: E402
from jobs.training.config import TrainingConfig  # noqa: E402
from jobs.training.loop import train  # noqa: E402

BATCH, EPOCHS, LR, BETA, LENGTH = 16, 1.0, 1e-4, 0.1, 256
FIRST_ROWS, JUDGED = 4000, 400
"""Rows that the base learns to write from, and pairs that models are judged on."""
ANSWERS = ("chosen", "rejected")


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """The pairs, and the folder of the base."""

    train: list[Row]
    eval: list[Row]
    base: str


def main() -> int:
    """Trains everything, prints the table, and returns 1 if a difference is no chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, choices=CHANCE_T, default=3)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # `compared` knows the other side by this name
    found: dict[str, list[Scores]] = {"winnow": [], "trainer": []}
    with tempfile.TemporaryDirectory() as name:
        subject = e2e(arguments.data, Path(name), arguments.rows)
        print("base", judged(Path(subject.base), subject), flush=True)
        for seed in range(arguments.seeds):
            folder = Path(name) / f"{seed}"
            found["winnow"].append(judged(ours(subject, seed, folder), subject))
            found["trainer"].append(judged(plain(subject, seed, folder), subject))
            print(seed, {who: runs[-1] for who, runs in found.items()}, flush=True)
    result = compared(found, arguments.seeds)
    for metric, text in result["shown"].items():
        print(f"e2e {metric}: {text}")
    if arguments.out:
        text = json.dumps({"e2e": {"runs": found, **result}}, indent=1)
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    return int(not result["is_equal"])


def e2e(data: Path, folder: Path, rows: int) -> Subject:
    """Returns pairs of sentences for the same facts, and a base that writes such sentences."""
    read = {split: table(data / f"e2e/{split}.csv", ",") for split in ("train", "test")}
    written = [
        {"prompt": f"{row['mr']} : ", "response": row["ref"]} for row in read["train"][:FIRST_ROWS]
    ]
    start = folder / "llama"
    tokenizer = tokenizer_of([text for row in written for text in row.values()])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    fields = {"prompt": "prompt", "response": "response", "max_length": LENGTH}
    first = learning.Subject("first", written, written[:64], str(start), fields, 2.0, 8, 2e-3)
    base, _ = learning.ours(first, 0, folder / "first")
    train_rows = pairs(read["train"], rows)
    return Subject(train_rows, pairs(read["test"], JUDGED), str(base))


def pairs(rows: Sequence[Row], count: int) -> list[Row]:
    """Returns `count` pairs of sentences for the same facts; the shorter one is the chosen one."""
    of_facts: dict[str, list[str]] = {}
    for row in rows:
        of_facts.setdefault(row["mr"], []).append(row["ref"])
    found = [
        {"prompt": f"{facts} : ", "chosen": shorter, "rejected": longer}
        for facts, sentences in of_facts.items()
        for shorter, longer in itertools.pairwise(sorted(sentences, key=len))
        if len(shorter) < len(longer)
    ]
    return random.Random(5).sample(found, count)


def ours(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with Winnow, and returns the folder of the saved model."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for split, rows in (("train", subject.train), ("eval", subject.eval)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    names: dict[str, Any] = {name: name for name in ("prompt", *ANSWERS)}
    config = TrainingConfig(
        model=ModelSpec(base=subject.base, task="preference"),
        data=PreferenceData(**sources, **names, beta=BETA, max_length=LENGTH),
        epochs=EPOCHS,
        global_batch_size=BATCH,
        micro_batch_size=BATCH,
        precision="fp32",
        optimizer=OptimizerSpec(lr=LR, weight_decay=0.0),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=("reward_accuracy",),
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=DEVICE,
    )
    reference = train(config, lambda _: None, folder / "winnow")
    return Path(reference.path) / "model"


def plain(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with a plain loop of DPO, and returns the folder of the saved model."""
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(subject.base)
    model = loaded(subject.base)
    base = copy.deepcopy(model).eval()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    steps = round(EPOCHS * -(-len(subject.train) // BATCH))
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(LrScheduleSpec().warmup_ratio * steps), steps
    )
    done = 0
    for epoch in range(-(-steps * BATCH // len(subject.train))):
        order = random.Random(f"{seed} {epoch}").sample(subject.train, len(subject.train))
        for first in range(0, len(order), BATCH):
            if done == steps:
                break
            batch = encoded(tokenizer, order[first : first + BATCH])
            with torch.no_grad():
                before = margins(base, batch)
            loss = -torch.nn.functional.logsigmoid(BETA * (margins(model, batch) - before)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), OptimizerSpec().max_grad_norm)
            optimizer.step()
            schedule.step()
            done += 1
    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    return folder / "plain"


def loaded(folder: str | Path) -> Any:
    """Returns a saved language model on the device."""
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype="float32").to(DEVICE)


def encoded(tokenizer: Any, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Returns the tokens of all chosen answers, then of all rejected ones, and their labels."""
    fields = {"max_length": LENGTH}
    subject = learning.Subject("pairs", [], [], "", {"prompt": "", **fields}, 1.0, BATCH, LR)
    found = [
        learning.encoded(tokenizer, {"prompt": row["prompt"], "response": row[name]}, subject)
        for name in ANSWERS
        for row in rows
    ]
    padded = learning.padded(found, tokenizer.pad_token_id)
    return {name: value.to(DEVICE) for name, value in padded.items()}


def margins(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the log-probability of each chosen answer less that of the rejected one, (rows,)."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels.flatten(), reduction="none"
    ).view_as(labels)
    chosen, rejected = -losses.sum(dim=1).view(2, -1)
    difference: torch.Tensor = chosen - rejected
    return difference


@torch.no_grad()
def judged(folder: Path, subject: Subject) -> Scores:
    """Returns the scores of a saved model beside its base on all evaluation pairs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, base = loaded(folder).eval(), loaded(subject.base).eval()
    parts = []
    for first in range(0, len(subject.eval), BATCH):
        batch = encoded(tokenizer, subject.eval[first : first + BATCH])
        parts.append(BETA * (margins(model, batch) - margins(base, batch)))
    found = torch.cat(parts)
    return {
        "loss": float(-torch.nn.functional.logsigmoid(found).mean()),
        "margin": float(found.mean()),
        "accuracy": float((found > 0).float().mean()),
    }


if __name__ == "__main__":
    sys.exit(main())
