"""Regression in torch: standardised targets, whose unit the published head restores."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import DataError, ModelError, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification import ranking, rows
from jobs.tasks.text_classification.regression import metrics, reports, targets
from jobs.tasks.text_classification.task import ClassificationData
from jobs.tasks.text_classification.training import LabelledTextTraining
from jobs.training.data import encoding
from jobs.training.data.encoding import Progress
from jobs.training.quality import QualityReport
from jobs.training.task import Batch, TaskTraining

HUBER_DELTA = 1.0
"""Error from which on the Huber loss is linear, in standard deviations of the target."""
WHOLE_MODULES = "modules_to_save.default"
"""What peft puts into the names of modules that are trained whole."""


class RegressionTraining(LabelledTextTraining):
    """Numbers for each row; `labels` of a batch are (rows, outputs), in their own unit.

    The model learns (target - mean) / std of the training rows. Its published output layer gives
    the targets themselves: weights times std, and biases times std plus mean.
    """

    has_labels = True
    keeps_head = False  # a published head gives numbers in their unit, not standardised ones
    has_quality = True

    def __init__(self) -> None:
        self.mean = self.std = torch.zeros(0)
        """(outputs,) in float64: of the training rows; the mean is 0 if the head has no bias."""
        self.layer = ""
        """Name of the linear layer whose outputs are the model's."""
        self.is_huber = False

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every row, with its numbers."""
        assert isinstance(data, ClassificationData)
        table = rows.read_table(source, data)
        texts = rows.read_texts(table, source, data)
        numbers = targets.read(table, data.label_columns, source.shown)
        encoded = rows.encode_texts(texts, source.shown, tokenizer, data.max_length, progress)
        return rows.with_labels(encoded, texts, encoding.vectors(numbers), data.label_columns)

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each column of numbers, whatever the base was trained for."""
        self.name_outputs(config, label_names, "regression")

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> TaskTraining:
        """Returns the same with mean and deviation of the training rows, and the output layer.

        Raises DataError for numbers that are all the same, ModelError if the model's outputs are
        not those of a linear layer.
        """
        assert isinstance(data, ClassificationData)
        values = labels.astype(np.float64)
        std = values.std(axis=0)
        for name, spread in zip(label_names, std, strict=True):
            if not spread:
                column = f"{data.train.shown}: column {shown(name)}"
                raise DataError(f"{column} holds the same number in every row")
        made = copy.copy(self)
        made.layer, has_bias = output_layer(model, len(label_names))
        device = next(model.parameters()).device
        made.std = torch.tensor(std, device=device)
        made.mean = torch.tensor(values.mean(axis=0) if has_bias else 0 * std, device=device)
        made.is_huber = data.loss == "huber"
        return made

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Mean loss of the standardised numbers of each row times its weight, summed."""
        losses = self._losses(self.logits(model, batch), batch, is_huber=self.is_huber)
        return (losses * weights).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The predicted numbers in their unit, (rows, outputs)."""
        return self.logits(model, batch).double() * self.std + self.mean

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, then the moments of standardised numbers that metrics are made of."""
        logits = self.logits(model, batch)
        loss = (self._losses(logits, batch, is_huber=self.is_huber) * counts).sum().double()
        moments = metrics.sums(logits.double(), self._standardised(batch), counts)
        return torch.cat([loss[None], moments])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Every metric but Spearman's, and the mean loss of standardised numbers."""
        found = metrics.compute(sums[1:], self.std.cpu().numpy())
        return {**found, "loss": float(sums[0] / max(1.0, sums[1]))}

    def score_metrics(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
    ) -> dict[str, float]:
        """Spearman's rank correlation, the mean over outputs."""
        columns = zip(scores.T, np.asarray(labels).T, strict=True)
        return {"spearman": float(np.mean([ranking.spearman(*pair) for pair in columns]))}

    def quality(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
        text_of: Callable[[int], str],
    ) -> QualityReport | None:
        """A table of the numbers, a curve of each, and the worst mistakes."""
        return reports.of_numbers(scores, np.asarray(labels), label_names, text_of)

    def published(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights with an output layer that gives the numbers in their unit."""
        std, mean = self.std.cpu(), self.mean.cpu()

        def restored(name: str, tensor: torch.Tensor) -> torch.Tensor:
            wide = tensor.double()
            if is_named(name, f"{self.layer}.weight"):
                return (wide * std.to(wide.device)[:, None]).to(tensor.dtype)
            if is_named(name, f"{self.layer}.bias"):
                return (wide * std.to(wide.device) + mean.to(wide.device)).to(tensor.dtype)
            return tensor

        return {
            name: restored(name, tensor) if tensor.numel() else tensor
            for name, tensor in weights.items()
        }

    def _standardised(self, batch: Batch) -> torch.Tensor:
        return (batch["labels"] - self.mean) / self.std

    def _losses(self, logits: torch.Tensor, batch: Batch, *, is_huber: bool) -> torch.Tensor:
        wanted = self._standardised(batch).float()
        function = torch.nn.functional
        if is_huber:
            losses = function.huber_loss(logits, wanted, reduction="none", delta=HUBER_DELTA)
        else:
            losses = function.mse_loss(logits, wanted, reduction="none")
        return losses.mean(dim=1)


def is_named(name: str, wanted: str) -> bool:
    """Returns whether a weight has this name, perhaps below a module that peft adds."""
    return name == wanted or name.endswith(f".{wanted}")


def output_layer(model: Any, outputs: int) -> tuple[str, bool]:
    """Returns the name of the last linear layer with so many outputs, and whether it has a bias.

    Raises ModelError if there is none: nothing could restore the unit of the numbers then.
    """
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    heads = LabelledTextTraining.heads
    found = [
        (name, module)
        for name, module in bare.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module.out_features == outputs
        and any(part in heads for part in name.split("."))
        and "original_module" not in name
    ]
    if not found:
        raise ModelError(
            f"{type(bare).__name__} has no linear layer that gives its {outputs} outputs, which a"
            " regression needs to restore the unit of its numbers; choose another base"
        )
    name, layer = found[-1]
    return name.replace(f".{WHOLE_MODULES}", ""), layer.bias is not None


TRAINING = RegressionTraining()
