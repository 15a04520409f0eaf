"""Token classification in torch: cross-entropy of each word's first token, entities counted."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification.training import ClassificationTraining
from jobs.tasks.token_classification import metrics, rows
from jobs.tasks.token_classification.task import TokenData
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import IGNORED, TOKEN_LABELS
from jobs.training.task import Batch

TOTALS = 3
"""Sums before the counts of entities: the loss, words with the right label, and words."""


class TokenTraining(ClassificationTraining):
    """One label of several for the first token of each word."""

    columns, has_quality = (TOKEN_LABELS,), False

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns and the numbers of the labels."""
        own = _own(data)
        columns = [own.text, own.spans] if own.text is not None else [own.tokens, own.tags]
        return {"columns": columns, "is_text": own.text is not None, "names": tuple(label_names)}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every row, with labels of the words' first tokens. Raises DataError."""
        return rows.encode(source, _own(data), tokenizer, label_names, progress)

    def check_labels(self, label_names: Sequence[str], source: SourceSpec) -> None:
        """Raise DataError where there is no entity."""
        if len(label_names) < 2:
            raise DataError(f"{source.shown} has no entity to learn")

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each label, whatever the base was trained for."""
        super().configure(config, label_names)
        config.problem_type = None

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each labelled token times its row's weight, summed."""
        return (token_losses(self.logits(model, batch), batch) * weights[:, None]).sum()

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """(rows, tokens, labels) in fp32."""
        inputs = {name: tensor for name, tensor in batch.items() if name != TOKEN_LABELS}
        return super().logits(model, inputs)

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, words with the right label, words, and the counts of entities."""
        logits, labels = self.logits(model, batch), batch[TOKEN_LABELS]
        is_word, predicted = labels != IGNORED, logits.argmax(dim=-1)
        parts = (token_losses(logits, batch), (predicted == labels) & is_word, is_word)
        totals = [(part * counts[:, None]).double().sum() for part in parts]
        # words one after the other: tokens without a label lie between them
        order = is_word.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        words = [torch.where(is_word, tensor, 0).gather(1, order) for tensor in (labels, predicted)]
        entities = metrics.count(words[0], words[1], counts, (len(label_names) - 1) // 2)
        return torch.cat([torch.stack(totals), entities.flatten()])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Metrics of entities, the share of words with the right label, and the mean loss."""
        loss, right, words = sums[:TOTALS].tolist()
        return {
            **metrics.compute(sums[TOTALS:].reshape(3, -1)),
            "accuracy": right / max(1.0, words),
            "loss": loss / max(1.0, words),
        }


TRAINING = TokenTraining()


def token_losses(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Returns the cross-entropy of each token, (rows, tokens); 0 for tokens without a label."""
    labels = batch[TOKEN_LABELS]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(labels)


def _own(data: DataSpec) -> TokenData:
    assert isinstance(data, TokenData)
    return data
