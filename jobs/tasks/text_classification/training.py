"""Text classification in torch: cross-entropy, and metrics from a confusion matrix."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import DataError, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification import calibration, metrics, ranking, reports, rows
from jobs.tasks.text_classification.task import ClassificationData, LabelledTexts
from jobs.training.data.encoding import Progress
from jobs.training.model import base
from jobs.training.quality import QualityReport
from jobs.training.task import Batch, TaskTraining


class LabelledTextTraining(TaskTraining):
    """What all problems share whose rows are texts with labels, and whose model has a head."""

    heads = ("classifier", "score")

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Let whoever loads the tokenizer cut texts where training does."""
        base.settle(tokenizer, model_max_length=data.max_length)

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns and the numbers of the labels."""
        assert isinstance(data, LabelledTexts)
        return {"columns": data.text_columns, "label": data.label, "names": tuple(label_names)}

    def sample_texts(self, table: pa.Table) -> Sequence[Sequence[str]]:
        """Texts of the evaluation rows that are kept beside a model."""
        return rows.sample_texts(table)

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """(rows, outputs) in fp32."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits: torch.Tensor = model(**inputs).logits
        return logits.float()

    @staticmethod
    def name_outputs(config: Any, names: Sequence[str], problem_type: str) -> None:
        """Sets the names of a model's outputs, and the problem as transformers calls it."""
        config.num_labels = len(names)
        config.problem_type = problem_type
        config.id2label = dict(enumerate(names))
        config.label2id = {name: index for index, name in enumerate(names)}


class ClassificationTraining(LabelledTextTraining):
    """One label of several for each row."""

    has_labels = True
    has_quality = True

    def __init__(self) -> None:
        self.class_weights: torch.Tensor | None = None
        """(classes,): weights of the labels in the loss; None if all are 1."""
        self.smoothing = 0.0
        self.positive: int | None = None
        """Class that precision, recall, f1 and roc_auc are of; None for the default."""

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every row, with label numbers and names. Raises DataError."""
        assert isinstance(data, LabelledTexts)
        found = rows.load_rows(source, data)
        return rows.encode(
            found,
            tokenizer,
            max_length=data.max_length,
            label_names=label_names or found.label_names,
            progress=progress,
        )

    def check_labels(self, label_names: Sequence[str], source: SourceSpec) -> None:
        """Raise DataError where there is only one label."""
        if len(label_names) < 2:
            only = shown(label_names[0])
            raise DataError(f"{source.shown} has only the label {only}; two are needed")

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each label, whatever the base was trained for."""
        self.name_outputs(config, label_names, "single_label_classification")

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> TaskTraining:
        """Returns the same with the job's label weights, smoothing and positive label."""
        if not isinstance(data, ClassificationData):
            return self  # a task of another package, with labels of the same kind
        made = copy.copy(self)
        made.smoothing = data.label_smoothing
        made.positive = None if data.positive is None else number_of(data.positive, label_names)
        if data.class_weights is not None:
            counts = np.bincount(labels, minlength=len(label_names))
            balanced = len(labels) / (len(label_names) * np.maximum(counts, 1))
            weights = weights_of(data.class_weights, label_names, balanced)
            made.class_weights = torch.tensor(
                weights, dtype=torch.float32, device=next(model.parameters()).device
            )
        return made

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each row times its weight and its label's, summed."""
        labels = batch["labels"]
        losses = torch.nn.functional.cross_entropy(
            self.logits(model, batch), labels, reduction="none", label_smoothing=self.smoothing
        )
        if self.class_weights is not None:
            weights = weights * self.class_weights[labels]
        return (losses * weights).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """Probabilities, (rows, classes)."""
        return self.logits(model, batch).softmax(dim=-1)

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed cross-entropy, the confusion matrix, rows for true classes, and calibration.

        The cross-entropy has neither weights nor smoothing, so that it compares any two models.
        """
        classes, logits = len(label_names), self.logits(model, batch)
        labels = batch["labels"]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss = (losses * counts).sum().double()
        best, given = logits.softmax(dim=-1).max(dim=-1)
        confusion = torch.zeros(classes * classes, dtype=torch.float64, device=loss.device)
        confusion.index_add_(0, labels * classes + given, counts.double())
        return torch.cat([loss[None], confusion, calibration.sums(best, given == labels, counts)])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Every metric of a confusion matrix, the calibration error and the mean loss."""
        classes = len(label_names)
        table = np.rint(sums[1 : 1 + classes**2]).astype(np.int64).reshape(classes, classes)
        return {
            **metrics.compute(table, self.positive),
            "ece": calibration.ece(sums[-calibration.SUMS :]),
            "loss": float(sums[0]) / max(1, int(table.sum())),
        }

    def score_metrics(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
    ) -> dict[str, float]:
        """ROC AUC of the positive label, or the mean over labels against all others."""
        positive = 1 if self.positive is None and len(label_names) == 2 else self.positive
        if positive is not None:
            return {"roc_auc": ranking.roc_auc(labels == positive, scores[:, positive])}
        each = np.asarray(labels)[:, None] == np.arange(len(label_names))
        return {"roc_auc": ranking.mean_roc_auc(each, scores)}

    def quality(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
        text_of: Callable[[int], str],
    ) -> QualityReport | None:
        """The confusion matrix, a table of the labels, calibration, and the worst mistakes."""
        return reports.of_single_labels(scores, np.asarray(labels), label_names, text_of)


def number_of(label: str | int, label_names: Sequence[str]) -> int:
    """Returns the index of a label that the data section names. Raises DataError."""
    if str(label) not in label_names:
        raise DataError(
            f"{shown(str(label))} is no label of the training rows; use one of"
            f" {', '.join(label_names)}"
        )
    return list(label_names).index(str(label))


def weights_of(
    given: str | Mapping[str | int, float],
    label_names: Sequence[str],
    balanced: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the weight of each label: the balanced ones, or those that the data section names."""
    if isinstance(given, str):
        return balanced
    weights = np.ones(len(label_names))
    for name, weight in given.items():
        weights[number_of(name, label_names)] = weight
    return weights


TRAINING = ClassificationTraining()
