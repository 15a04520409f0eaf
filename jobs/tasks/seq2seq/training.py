"""Encoder-decoder models in torch: the loss is on targets, and text is written to be judged."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.seq2seq import generation, rows
from jobs.tasks.seq2seq.task import Seq2SeqData
from jobs.tasks.text_classification.rows import sample_texts
from jobs.training import text_metrics
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import IGNORED, TARGET_IDS, TokenSet
from jobs.training.model import base
from jobs.training.model.adapter import unwrapped
from jobs.training.model.library import as_model_error
from jobs.training.task import Batch, Generator
from jobs.training.token_training import TokenTraining

NOT_INPUTS = ("labels", TARGET_IDS, f"{TARGET_IDS}_mask")
"""Parts of a batch that the encoder does not read."""


class Seq2SeqTraining(TokenTraining):
    """The next token of each target, given its source."""

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Lets whoever loads the tokenizer cut sources and name languages as training does."""
        own = _own(data)
        given = generation.languages(tokenizer, own)
        with as_model_error(f"the base's tokenizer does not take the languages {given}"):
            base.settle(tokenizer, model_max_length=own.max_length, **given)

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """Columns, prefix, languages and the longest target."""
        own = _own(data)
        return {
            "columns": (own.source, own.target),
            "prefix": own.prefix,
            "languages": (own.source_language, own.target_language),
            "max_target_length": own.max_target_length,
        }

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every source and its target. Raises DataError."""
        return rows.encode(source, _own(data), tokenizer, progress)

    def end_tokens(self, table: pa.Table) -> tuple[int, ...]:
        """The token that ends a target."""
        return rows.end_tokens(table)

    def sample_texts(self, table: pa.Table) -> Sequence[Sequence[str]]:
        """Sources of the evaluation rows that are kept beside a model, with their prefix."""
        return sample_texts(table)

    def settle(self, model: Any, data: DataSpec, tokens: TokenSet, tokenizer: Any) -> None:
        """Sets how the model writes targets."""
        generation.settle(model, _own(data), tokens, tokenizer)

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """(rows, target tokens, vocabulary) in fp32; 0 beyond a row's target."""
        inputs, targets = self.read(model, batch)
        logits: torch.Tensor = model(**inputs).logits
        return logits.float() * (targets != IGNORED)[:, :, None]

    def read(self, model: Any, batch: Batch) -> tuple[Mapping[str, Any], torch.Tensor]:
        """Returns the model's arguments, and the tokens of each target."""
        targets = batch[TARGET_IDS].long()
        return inputs_of(model, batch, targets), targets

    def generated(
        self, data: DataSpec, tokenizer: Any, generator: Generator, names: Sequence[str]
    ) -> dict[str, float]:
        """Metrics of what the model writes for the evaluation rows."""
        answers = generator.answers()
        texts = tokenizer.batch_decode(list(answers.values()), skip_special_tokens=True)
        right = rows.references_of(data.eval, _own(data))
        return text_metrics.compute(names, texts, [right[row] for row in answers])


TRAINING = Seq2SeqTraining()


def inputs_of(model: Any, batch: Batch, targets: torch.Tensor) -> dict[str, Any]:
    """Returns the arguments of a model whose decoder reads targets, (rows, tokens).

    The decoder reads the targets as the model itself shifts them.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in NOT_INPUTS}
    shift = getattr(unwrapped(model), "prepare_decoder_input_ids_from_labels", None)
    # without a method of its own, a model shifts the targets when it gets them as labels
    read = {"labels": targets} if shift is None else {"decoder_input_ids": shift(targets)}
    return {**inputs, **read, "use_cache": False}


def _own(data: DataSpec) -> Seq2SeqData:
    assert isinstance(data, Seq2SeqData)
    return data
