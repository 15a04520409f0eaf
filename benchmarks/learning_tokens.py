"""Compares token classification with Hugging Face's Trainer on WNUT-17.

    python benchmarks/learning_tokens.py DATA [--seeds 3] [--rows 1000] [--epochs 2] [--out FILE]
    python benchmarks/learning_tokens.py DATA --seeds 0

DATA holds `wnut17/train.conll` and `wnut17/dev.conll` of the WNUT 2017 shared task (Derczynski et
al., 2017). First it counts the sentences of both files whose tokens and labels are the Trainer's;
with `--seeds 0` it ends there.

Each seed draws the head's weights and the order of the rows, for both; rows, batches, learning
rate, schedule and epochs are the same. The Trainer's rows are tokenised as in its own example, word
by word. Both saved models are judged by one loop in plain PyTorch on all rows of `dev.conll`, with
seqeval in strict mode. Prints mean and standard deviation over the seeds, and whether the
difference of the means is one that chance makes (Student's t-test at 1 %).
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import seqeval.metrics
import seqeval.scheme
import torch
import transformers

from benchmarks import learning
from benchmarks.learning import CHANCE_T, DEVICE, MINILM, compared
from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec
from jobs.tasks.token_classification import rows as own_rows
from jobs.tasks.token_classification.tags import label_names
from jobs.tasks.token_classification.task import TokenData
from jobs.training.config import TrainingConfig
from jobs.training.data import conll_files
from jobs.training.loop import train
from jobs.training.model import location

LONGEST, BATCH, LR = 64, 32, 3e-4
JUDGED_ROWS = 64
OWN_EVAL_ROWS = 64
"""Rows of our own evaluation, which is not what is compared."""
IGNORED = -100
Sentence = tuple[list[str], list[str]]
Scores = dict[str, float]


@dataclass(frozen=True, slots=True)
class Subject:
    """Rows, and the number of passes over them."""

    train: Sequence[Sentence]
    eval: Sequence[Sentence]
    names: tuple[str, ...]
    epochs: float


def main() -> int:
    """Train everything, print the table, and exit with 1 where a difference is no chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, choices=(0, *CHANCE_T), default=3)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    splits = [sentences(arguments.data / f"wnut17/{split}.conll") for split in ("train", "dev")]
    few = random.Random(5).sample(splits[0], min(arguments.rows, len(splits[0])))
    names = label_names([tags for _, tags in splits[0]])
    subject = Subject(few, splits[1], names, arguments.epochs)
    same, rows = alike(arguments.data, names), sum(map(len, splits))
    print(f"wnut17 rows: {same} of {rows} have the tokens and labels of the Trainer")
    if not arguments.seeds:
        return int(same < rows)
    found: dict[str, list[Scores]] = {"winnow": [], "trainer": []}
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as name:
            for who, learn in (("winnow", ours), ("trainer", theirs)):
                found[who].append(judged(learn(subject, seed, Path(name)), subject))
                print("wnut17", seed, who, found[who][-1], flush=True)
    result = {"runs": found, **compared(found, arguments.seeds)}
    for metric, text in result["shown"].items():
        print(f"wnut17 {metric}: {text}")
    if arguments.out:
        text = json.dumps({"wnut17": result}, indent=1) + "\n"
        arguments.out.write_text(text, encoding="utf-8")
    return int(not result["is_equal"])


def sentences(path: Path) -> list[Sentence]:
    """Tokens and tags of each sentence."""
    table = conll_files.read(path, path.name)
    columns = (table.values(conll_files.TOKENS), table.values(conll_files.TAGS))
    return list(zip(*columns, strict=True))


def alike(data: Path, names: Sequence[str]) -> int:
    """Returns the number of sentences whose tokens and labels are the same for both."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(location.locate(MINILM))
    same = 0
    for split in ("train", "dev"):
        path = data / f"wnut17/{split}.conll"
        source = SourceSpec(path=str(path))
        columns = TokenData(train=source, eval=source, max_length=LONGEST)
        table = own_rows.encode(source, columns, tokenizer, names)
        parts = table["input_ids"].to_pylist(), table["token_labels"].to_pylist()
        for ids, labels, row in zip(*parts, sentences(path), strict=True):
            other = encoded(tokenizer, row, names)
            same += ids == other["input_ids"] and labels == other["labels"]
    return same


def configured(subject: Subject, seed: int, folder: Path) -> TrainingConfig:
    """A resolved job over files of the subject's rows."""
    sources: dict[str, Any] = {}
    parts = (("train", subject.train), ("eval", subject.eval[:OWN_EVAL_ROWS]))
    for split, rows in parts:
        path = folder / f"{split}.jsonl"
        lines = [json.dumps({"tokens": tokens, "tags": tags}) for tokens, tags in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    return TrainingConfig(
        model=ModelSpec(base=MINILM, task="token-classification"),
        data=TokenData(**sources, max_length=LONGEST),
        epochs=subject.epochs,
        global_batch_size=BATCH,
        micro_batch_size=BATCH,
        precision="bf16" if DEVICE == "cuda" else "fp32",
        optimizer=OptimizerSpec(lr=LR),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=("f1",),
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=DEVICE,
    )


def ours(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with Winnow, and returns the folder of the saved model."""
    reference = train(configured(subject, seed, folder), lambda _: None, folder / "winnow")
    return Path(reference.path) / "model"


def theirs(subject: Subject, seed: int, folder: Path) -> Path:
    """Train with the Trainer; the saved model."""
    config = configured(subject, seed, folder)
    transformers.set_seed(seed)
    place = location.locate(MINILM)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    names = subject.names
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        place,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
    )
    arguments = transformers.TrainingArguments(**learning.trainer_settings(config, folder))
    transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[encoded(tokenizer, row, names) for row in subject.train],
        data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
    ).train()
    model.save_pretrained(folder / "trainer")
    tokenizer.save_pretrained(folder / "trainer")
    return folder / "trainer"


def encoded(tokenizer: Any, row: Sentence, names: Sequence[str]) -> dict[str, Any]:
    """Token ids of a sentence, with the label of each word at its first token."""
    tokens, tags = row
    found = tokenizer(tokens, is_split_into_words=True, truncation=True, max_length=LONGEST)
    words = found.word_ids()
    labels = [
        names.index(tags[word]) if word is not None and word != before else IGNORED
        for before, word in zip([None, *words], words, strict=False)
    ]
    return {**found, "labels": labels}


@torch.no_grad()
def judged(folder: Path, subject: Subject) -> Scores:
    """F1 of entities, accuracy and mean loss of a saved model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    auto = transformers.AutoModelForTokenClassification
    model = auto.from_pretrained(folder, dtype="float32").eval().to(DEVICE)
    assert [model.config.id2label[n] for n in range(len(subject.names))] == list(subject.names)
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    rows = [encoded(tokenizer, row, subject.names) for row in subject.eval]
    loss, count, right = 0.0, 0, 0
    true, predicted = list[list[str]](), list[list[str]]()
    for first in range(0, len(rows), JUDGED_ROWS):
        batch = collate(rows[first : first + JUDGED_ROWS]).to(DEVICE)
        labels = batch.pop("labels")
        logits = model(**batch).logits
        flat = logits.flatten(0, 1), labels.flatten()
        loss += float(torch.nn.functional.cross_entropy(*flat, reduction="sum"))
        best, is_word = logits.argmax(dim=-1), labels != IGNORED
        right += int((best == labels)[is_word].sum())
        count += int(is_word.sum())
        for own, guess, mask in zip(labels, best, is_word, strict=True):
            true.append([subject.names[n] for n in own[mask].tolist()])
            predicted.append([subject.names[n] for n in guess[mask].tolist()])
    strict = {"mode": "strict", "scheme": seqeval.scheme.IOB2}
    f1 = seqeval.metrics.f1_score(true, predicted, **strict)
    return {"f1": float(f1), "accuracy": right / count, "loss": loss / count}


if __name__ == "__main__":
    sys.exit(main())
