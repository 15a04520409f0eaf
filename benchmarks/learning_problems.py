"""Compares multi-label classification and regression with Hugging Face's Trainer.

    python benchmarks/learning_problems.py DATA [--only goemotions ratings goemotions-tiny
        ratings-tiny] [--seeds 3] [--out FILE]

DATA holds files as they are published: `goemotions/train.tsv`, `dev.tsv` and `labels.txt` of
GoEmotions (28 labels, several a text), and `vader/movieReviewSnippets_GroundTruth.txt` of the
source archive of vaderSentiment 0.5 on PyPI (sentences of films with their mean rating, -4 to 4).

Rows, batches, rates and epochs are the same for both, as in `learning.py`, which this calls.
The Trainer's regression gets standardised ratings, as ours makes them itself, and its outputs are
brought back into their unit; a published model of ours gives ratings by itself. The tiny subjects
train a BERT of two layers from random weights, in seconds on a CPU.
"""

import csv
import dataclasses
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import learning  # noqa: E402 - runs from a clone, installed or not
from benchmarks.learning import MINILM, Maker, Row, Scores, Subject  # noqa: E402
from jobs.tasks.text_classification import ranking  # noqa: E402
from jobs.training.model import location  # noqa: E402

TRAIN_ROWS, EVAL_ROWS = 3000, 1000


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Subject):
    """Any number of labels for each row."""

    names: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the job."""
        return ("f1_micro", "average_precision")

    @property
    def outputs(self) -> dict[str, Any]:
        """What the Trainer's classifier is loaded with."""
        return {"num_labels": len(self.names), "problem_type": "multi_label_classification"}

    def target(self, row: Row) -> Any:
        """1 for each label of the row, and 0 for others."""
        return [float(name in row["labels"]) for name in self.order]

    @property
    def order(self) -> list[str]:
        """The labels in the order of the outputs."""
        return sorted(self.names)

    def scores(self, logits: torch.Tensor, rows: Sequence[Row], *, is_ours: bool) -> Scores:
        """Average precision over all pairs and over labels, and the mean loss."""
        true = torch.tensor([self.target(row) for row in rows])
        given = logits.sigmoid().numpy()
        wanted = true.numpy().astype(bool)
        each = [
            ranking.average_precision(wanted[:, n], given[:, n])
            for n in np.flatnonzero(wanted.any(axis=0))
        ]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, true)
        return {
            "micro average precision": ranking.average_precision(wanted.ravel(), given.ravel()),
            "average precision": float(np.mean(each)),
            "loss": float(loss),
        }


@dataclasses.dataclass(frozen=True)
class Ratings(Subject):
    """Regression of one number for each row."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the job."""
        return ("rmse", "spearman")

    @property
    def outputs(self) -> dict[str, Any]:
        """What the Trainer's model is loaded with."""
        return {"num_labels": 1, "problem_type": "regression"}

    @property
    def unit(self) -> tuple[float, float]:
        """Mean and deviation of the training rows."""
        ratings = [row["rating"] for row in self.train]
        return statistics.mean(ratings), statistics.pstdev(ratings)

    def target(self, row: Row) -> Any:
        """The standardised rating."""
        mean, deviation = self.unit
        return [(row["rating"] - mean) / deviation]

    def scores(self, logits: torch.Tensor, rows: Sequence[Row], *, is_ours: bool) -> Scores:
        """The error and the correlations of the ratings."""
        mean, deviation = self.unit
        given = logits[:, 0].double().numpy()
        if not is_ours:
            given = given * deviation + mean
        true = np.array([row["rating"] for row in rows])
        return {
            "rmse": float(np.sqrt(((given - true) ** 2).mean())),
            "pearson": ranking.pearson(given, true),
            "spearman": ranking.spearman(given, true),
        }


def goemotions(data: Path, _: Path) -> Subject:
    """Comments with emotions, drawn once."""
    names = (data / "goemotions/labels.txt").read_text(encoding="utf-8").split()
    splits = []
    for split, count in (("train", TRAIN_ROWS), ("dev", EVAL_ROWS)):
        with (data / f"goemotions/{split}.tsv").open(encoding="utf-8", newline="") as handle:
            found = [
                {"text": row[0], "labels": [names[int(n)] for n in row[1].split(",")]}
                for row in csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
            ]
        splits.append(random.Random(5).sample(found, count))
    fields = {"text": "text", "label": "labels", "problem": "multi-label", "max_length": 48}
    known = tuple(sorted({label for row in splits[0] for label in row["labels"]}))
    held_back = [{**row, "labels": [n for n in row["labels"] if n in known]} for row in splits[1]]
    return SeveralLabels(
        "goemotions", splits[0], held_back, MINILM, fields, 2.0, 32, 5e-4, names=known
    )


def ratings(data: Path, _: Path) -> Subject:
    """Returns sentences of film reviews with their mean rating; the sample is always the same."""
    place = data / "vader/movieReviewSnippets_GroundTruth.txt"
    with place.open(encoding="utf-8", errors="replace", newline="") as handle:
        reader = csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [{"text": row[2], "rating": float(row[1])} for row in reader if len(row) == 3]
    drawn = random.Random(5).sample(found, TRAIN_ROWS + EVAL_ROWS)
    fields = {"text": "text", "label": "rating", "problem": "regression", "max_length": 48}
    held_back = drawn[TRAIN_ROWS:]
    return Ratings("ratings", drawn[:TRAIN_ROWS], held_back, MINILM, fields, 1.0, 32, 2e-4)


def tiny(make: Maker, lr: float) -> Maker:
    """The same rows for a BERT of two layers with random weights and MiniLM's words."""

    def made(data: Path, folder: Path) -> Subject:
        base = folder / "tiny-bert"
        torch.manual_seed(0)
        config = transformers.BertConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
        )
        transformers.BertModel(config).save_pretrained(base)
        tokenizer = transformers.AutoTokenizer.from_pretrained(location.locate(MINILM))
        tokenizer.save_pretrained(base)
        subject = make(data, folder)
        name = f"{subject.name}-tiny"
        return dataclasses.replace(subject, name=name, base=str(base), epochs=5.0, lr=lr)

    return made


MAKERS = {
    "goemotions": goemotions,
    "ratings": ratings,
    "goemotions-tiny": tiny(goemotions, 3e-3),
    "ratings-tiny": tiny(ratings, 1e-3),
}

if __name__ == "__main__":
    sys.exit(learning.compare_all(__doc__, MAKERS))
