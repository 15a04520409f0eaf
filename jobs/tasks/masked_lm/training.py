"""Masked language models in torch: training draws the tokens to predict anew in each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.causal_lm.training import LanguageTraining
from jobs.tasks.masked_lm import rows
from jobs.tasks.masked_lm.rows import HIDDEN, MASKABLE, REPLACED
from jobs.tasks.masked_lm.task import MaskedData
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import IGNORED, INPUT_IDS, LOSS_MASK, MASKED_IDS
from jobs.training.model.adapter import unwrapped
from jobs.training.task import Batch, Generator

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
        shown = torch.where(chosen & (kind < HIDDEN), batch["labels"][:, None], ids)
        shown = torch.where(chosen & (kind >= 1 - REPLACED), others, shown)
        found = self.output_layer.predict(
            model, _inputs(shown, batch), torch.where(chosen, ids, IGNORED)
        )
        return (found.losses * weights[:, None]).sum()

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """Returns the logits of the first predicted token of each row, (rows, vocabulary)."""
        first = batch[LOSS_MASK].argmax(dim=1)
        logits: torch.Tensor = model(**_inputs(_shown(batch), batch)).logits
        return logits[torch.arange(len(first), device=first.device), first].float()

    def read(self, model: Any, batch: Batch) -> tuple[Mapping[str, Any], torch.Tensor]:
        """Returns the model's arguments, and the hidden tokens at their own places."""
        targets = torch.where(batch[LOSS_MASK].bool(), batch[INPUT_IDS], IGNORED)
        return _inputs(_shown(batch), batch), targets


TRAINING = MaskedTraining()


def draw(batch: Batch) -> torch.Tensor:
    """Returns random tokens of each row to predict, (rows, tokens), on the batch's device."""
    maskable = batch[MASKABLE].bool()
    order = torch.where(maskable, torch.rand(maskable.shape, device=maskable.device), BEHIND)
    rank = order.argsort(dim=1).argsort(dim=1)
    return (rank < batch[LOSS_MASK].sum(dim=1, keepdim=True)) & maskable


def _shown(batch: Batch) -> torch.Tensor:
    """Returns the tokens that an evaluation shows the model, with the tokenizer's padding."""
    return torch.where(batch["attention_mask"].bool(), batch[MASKED_IDS], batch[INPUT_IDS])


def _inputs(ids: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    return {INPUT_IDS: ids, "attention_mask": batch["attention_mask"]}


def _vocabulary(model: Any) -> int:
    return int(unwrapped(model).config.get_text_config().vocab_size)
