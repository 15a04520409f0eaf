"""Classification with several labels in torch: binary cross-entropy of each label."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification import calibration, ranking, rows
from jobs.tasks.text_classification.multi_label import labels as row_labels
from jobs.tasks.text_classification.multi_label import metrics, reports
from jobs.tasks.text_classification.task import ClassificationData
from jobs.tasks.text_classification.training import LabelledTextTraining, weights_of
from jobs.training.data import encoding
from jobs.training.data.encoding import Progress
from jobs.training.quality import QualityReport
from jobs.training.task import Batch, TaskTraining


class MultiLabelTraining(LabelledTextTraining):
    """Any number of labels for each row; `labels` of a batch are (rows, labels), 1 or 0."""

    has_labels = True
    has_quality = True

    def __init__(self) -> None:
        self.positive_weights: torch.Tensor | None = None
        """(labels,): weights of the rows that have the label; None if all are 1."""
        self.smoothing = 0.0

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns, the separator, and the numbers of the labels."""
        assert isinstance(data, ClassificationData)
        return {**super().key(data, label_names), "separator": data.separator}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every row, with 1 for each of its labels and 0 for others."""
        assert isinstance(data, ClassificationData)
        table = rows.read_table(source, data)
        texts = rows.read_texts(table, source, data)
        found = row_labels.read(table, data, source.shown)
        names = label_names or row_labels.names_of(table, data, found)
        rows.check_known((label for row in found for label in row), names, source.shown)
        number = {name: index for index, name in enumerate(names)}
        values = np.zeros((len(found), max(1, len(names))), np.int8)
        for row, own in enumerate(found):
            values[row, [number[label] for label in own]] = 1
        encoded = rows.encode_texts(texts, source.shown, tokenizer, data.max_length, progress)
        return rows.with_labels(encoded, texts, encoding.vectors(values), names)

    def check_labels(self, label_names: Sequence[str], source: SourceSpec) -> None:
        """Raises DataError if no training row has a label."""
        if not label_names:
            raise DataError(f"{source.shown} has no row with a label; there is nothing to learn")

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each label, whatever the base was trained for."""
        self.name_outputs(config, label_names, "multi_label_classification")

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> TaskTraining:
        """Returns the same with the job's label weights and smoothing."""
        assert isinstance(data, ClassificationData)
        made = copy.copy(self)
        made.smoothing = data.label_smoothing
        if data.class_weights is not None:
            have = labels.astype(np.float64).sum(axis=0)
            balanced = np.where(have > 0, (len(labels) - have) / np.maximum(have, 1), 1.0)
            weights = weights_of(data.class_weights, label_names, np.maximum(balanced, 1e-3))
            made.positive_weights = torch.tensor(
                weights, dtype=torch.float32, device=next(model.parameters()).device
            )
        return made

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Mean binary cross-entropy of the labels of each row times its weight, summed."""
        targets = batch["labels"].float()
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            self.logits(model, batch),
            targets,
            pos_weight=self.positive_weights,
            reduction="none",
        )
        return (losses.mean(dim=1) * weights).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The probability of each label, (rows, labels)."""
        return self.logits(model, batch).sigmoid()

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss without weights and smoothing, calibration, and sums of the metrics."""
        logits = self.logits(model, batch)
        is_true = batch["labels"] > 0
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, is_true.float(), reduction="none"
        )
        loss = (losses.mean(dim=1) * counts).sum().double()
        scores = logits.sigmoid()
        every = counts[:, None].expand_as(scores).flatten()
        calibrated = calibration.sums(scores.flatten(), is_true.flatten(), every)
        counted = metrics.sums(scores >= metrics.THRESHOLD, is_true, counts)
        return torch.cat([loss[None], calibrated, counted])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Every metric of sums, and the mean loss."""
        calibrated = sums[1 : 1 + calibration.SUMS]
        counted = sums[1 + calibration.SUMS :]
        return {
            **metrics.compute(counted),
            "ece": calibration.ece(calibrated),
            "loss": float(sums[0]) / max(1.0, float(counted[0])),
        }

    def score_metrics(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
    ) -> dict[str, float]:
        """Average precision and ROC AUC, each the mean over labels."""
        is_true = np.asarray(labels).astype(bool)
        each = [
            ranking.average_precision(is_true[:, n], scores[:, n]) for n in range(len(label_names))
        ]
        return {
            "average_precision": float(np.mean(each)),
            "roc_auc": ranking.mean_roc_auc(is_true, scores),
        }

    def quality(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
        text_of: Callable[[int], str],
    ) -> QualityReport | None:
        """Thresholds, a table of the labels, calibration, and the worst mistakes."""
        return reports.of_label_sets(scores, np.asarray(labels) > 0, label_names, text_of)


TRAINING = MultiLabelTraining()
