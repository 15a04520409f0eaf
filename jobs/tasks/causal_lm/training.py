"""Causal language models in torch: the loss is on responses, and metrics count their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.causal_lm import documents, metrics, rows
from jobs.tasks.causal_lm.task import LanguageData
from jobs.training import text_metrics
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import IGNORED, INPUT_IDS, LOSS_MASK
from jobs.training.engine.inputs import attention_inputs
from jobs.training.task import Batch, Generator
from jobs.training.token_training import TokenTraining

ANSWERS, ANSWER_TOKENS = 32, 64
"""Prompts that are answered to judge diversity, and how long the answers may get."""


DIVERSITY = {"distinct_1", "distinct_2", "repetition"}
"""Metrics of sampled answers."""


class LanguageTraining(TokenTraining):
    """The next token of each response."""

    is_causal = True

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Give a tokenizer without a chat template the plain one."""
        rows.prepare(tokenizer, _own(data))

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns."""
        own = _own(data)
        columns = {"prompt": own.prompt, "response": own.response, "messages": own.messages}
        others = {"tools": own.tools, "text": own.text}
        return columns | {name: column for name, column in others.items() if column is not None}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids and loss mask of every row with a response, or of documents in rows.

        Raises DataError.
        """
        own = _own(data)
        read = rows.encode if own.text is None else documents.encode
        return read(source, own, tokenizer, progress)

    def end_tokens(self, table: pa.Table) -> tuple[int, ...]:
        """Tokens that end an answer in the training rows."""
        return rows.end_tokens(table)

    def left_out(self, table: pa.Table) -> int:
        """Training rows whose response lies beyond max_length."""
        return rows.left_out(table)

    def cut(self, table: pa.Table) -> int:
        """Rows of which what lies beyond max_length is cut off."""
        return rows.cut(table)

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """(rows, tokens, vocabulary) in fp32."""
        ids = batch["input_ids"]
        logits: torch.Tensor = model(
            input_ids=ids, use_cache=False, **attention_inputs(batch)
        ).logits
        return logits.float()

    def read(self, model: Any, batch: Batch) -> tuple[Mapping[str, Any], torch.Tensor]:
        """Returns the model's arguments, and the next token at each place of a response."""
        return next_tokens(batch)

    def generated(
        self, data: DataSpec, tokenizer: Any, generator: Generator, names: Sequence[str]
    ) -> dict[str, float]:
        """Metrics of answers to evaluation rows, and how varied those to the first prompts are."""
        own, found = _own(data), dict[str, float]()
        if set(names) - DIVERSITY:
            written = list(generator.responses().values())
            texts, right = (
                tokenizer.batch_decode([pair[side] for pair in written], skip_special_tokens=True)
                for side in (0, 1)
            )
            if written:
                found |= text_metrics.compute(names, texts, [[text] for text in right])
        if not DIVERSITY & set(names):
            return found
        begin = rows.prompts if own.text is None else documents.beginnings
        prompts = begin(data.eval, own, tokenizer, ANSWERS)
        return found | metrics.diversity(generator.sample(prompts, ANSWER_TOKENS))


TRAINING = LanguageTraining()


def next_tokens(batch: Batch) -> tuple[Mapping[str, Any], torch.Tensor]:
    """Returns a decoder's arguments, and the token behind each place, (rows, tokens).

    It is IGNORED where that token is none of a response.
    """
    ids, counts = batch[INPUT_IDS], batch[LOSS_MASK].bool()
    following = torch.where(counts, ids, IGNORED)[:, 1:]
    targets = torch.nn.functional.pad(following, (0, 1), value=IGNORED)
    return {INPUT_IDS: ids, "use_cache": False, **attention_inputs(batch)}, targets


def _own(data: DataSpec) -> LanguageData:
    assert isinstance(data, LanguageData)
    return data
