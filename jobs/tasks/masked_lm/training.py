"""Masked language models in torch: training draws the tokens to predict anew in each step."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.causal_lm.training import LanguageTraining
from jobs.tasks.masked_lm import rows
from jobs.tasks.masked_lm.rows import HIDDEN, MASKABLE, REPLACED
from jobs.tasks.masked_lm.task import MaskedData
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, MASKED_IDS
from jobs.training.task import Batch, Generator
from jobs.training.token_training import TokenPrediction

BEHIND = 2.0
"""Above every random number, so that a token with this rank is drawn last."""


class MaskedTraining(LanguageTraining):
    """The hidden tokens of each row."""

    is_causal = False
    columns = (MASKED_IDS, MASKABLE)

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Does nothing: the tokenizer stays as it is."""

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """Returns the column and the share of predicted tokens."""
        assert isinstance(data, MaskedData)
        return {"text": data.text, "mask_share": data.mask_share}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Returns rows of joined documents. Raises DataError."""
        assert isinstance(data, MaskedData)
        return rows.encode(source, data, tokenizer, progress)

    def end_tokens(self, table: pa.Table) -> tuple[int, ...]:
        """Returns nothing: no text is generated."""
        return ()

    def generated(
        self, data: DataSpec, tokenizer: Any, generator: Generator, names: Sequence[str]
    ) -> dict[str, float]:
        """Returns nothing: no text is generated."""
        return {}

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Returns the cross-entropy of newly drawn tokens times their row's weight, summed.

        As many tokens of each row are drawn as its evaluation predicts, so that the number of
        predicted tokens of a step is known before the step.
        """
        ids, chosen = batch[INPUT_IDS], draw(batch)
        kind = torch.rand(ids.shape, device=ids.device)
        others = torch.randint_like(ids, _vocabulary(model))
        read = torch.where(chosen & (kind < HIDDEN), batch["labels"][:, None], ids)
        read = torch.where(chosen & (kind >= 1 - REPLACED), others, read)
        losses = _losses(_logits(model, read, batch), ids)
        return (losses * chosen * weights[:, None]).sum()

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """Returns the logits of the first predicted token of each row, (rows, vocabulary)."""
        first = batch[LOSS_MASK].argmax(dim=1)
        logits = _logits(model, _read(batch), batch)
        return logits[torch.arange(len(first), device=first.device), first].float()

    def predict(self, model: Any, batch: Batch) -> TokenPrediction:
        """Returns the predictions of tokens at their own places, (rows, tokens)."""
        logits, targets = _logits(model, _read(batch), batch), batch[INPUT_IDS]
        return TokenPrediction(_losses(logits, targets), batch[LOSS_MASK].float(), logits, targets)


TRAINING = MaskedTraining()


def draw(batch: Batch) -> torch.Tensor:
    """Returns random tokens of each row to predict, (rows, tokens), on the batch's device."""
    maskable = batch[MASKABLE].bool()
    order = torch.where(maskable, torch.rand(maskable.shape, device=maskable.device), BEHIND)
    rank = order.argsort(dim=1).argsort(dim=1)
    return (rank < batch[LOSS_MASK].sum(dim=1, keepdim=True)) & maskable


def _read(batch: Batch) -> torch.Tensor:
    """Returns the tokens that an evaluation shows the model, with the tokenizer's padding."""
    return torch.where(batch["attention_mask"].bool(), batch[MASKED_IDS], batch[INPUT_IDS])


def _logits(model: Any, ids: torch.Tensor, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits
    return logits


def _losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="none"
    )
    return losses.view_as(targets)


def _vocabulary(model: Any) -> int:
    bare = getattr(model, "module", model)
    return int(bare.config.get_text_config().vocab_size)
