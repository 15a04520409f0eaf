"""Text classification in torch: cross-entropy, and metrics from a confusion matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import DataError, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification import metrics, rows
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.data.encoding import Progress
from jobs.training.model import base
from jobs.training.task import Batch, TaskTraining


class ClassificationTraining(TaskTraining):
    """One label of several for each row."""

    heads = ("classifier", "score")
    has_labels = True

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Let whoever loads the tokenizer cut texts where training does."""
        base.settle(tokenizer, model_max_length=data.max_length)

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns and the numbers of the labels."""
        assert isinstance(data, ClassificationData)
        return {"columns": data.text_columns, "label": data.label, "names": tuple(label_names)}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every row, with label numbers and names. Raises DataError."""
        assert isinstance(data, ClassificationData)
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

    def sample_texts(self, table: pa.Table) -> Sequence[Sequence[str]]:
        """Texts of the evaluation rows that are kept beside a model."""
        return rows.sample_texts(table)

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each label, whatever the base was trained for."""
        config.num_labels = len(label_names)
        config.problem_type = "single_label_classification"
        config.id2label = dict(enumerate(label_names))
        config.label2id = {name: index for index, name in enumerate(label_names)}

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each row times its weight, summed."""
        return (self._losses(self.logits(model, batch), batch) * weights).sum()

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """(rows, classes) in fp32."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits: torch.Tensor = model(**inputs).logits
        return logits.float()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """Probabilities, (rows, classes)."""
        return self.logits(model, batch).softmax(dim=-1)

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, then the confusion matrix: rows are true classes."""
        classes, logits = len(label_names), self.logits(model, batch)
        loss = (self._losses(logits, batch) * counts).sum().double()
        confusion = torch.zeros(classes * classes, dtype=torch.float64, device=loss.device)
        confusion.index_add_(0, batch["labels"] * classes + logits.argmax(dim=-1), counts.double())
        return torch.cat([loss[None], confusion])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Accuracy, F1, MCC and the mean loss."""
        classes = len(label_names)
        table = np.rint(sums[1:]).astype(np.int64).reshape(classes, classes)
        return {**metrics.compute(table), "loss": float(sums[0]) / max(1, int(table.sum()))}

    @staticmethod
    def _losses(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")


TRAINING = ClassificationTraining()
