"""Fills the masks of texts with a masked language model, one batch after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from serve.batching.client import DeadlineError
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Row
from serve.engines.engine import Engine, softmax
from serve.http.errors import HttpError

ANSWER_TOKENS = 2**22
"""Most tokens of all fillings of a request, each of which repeats its whole text."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The likeliest tokens of the masks of one text, each with its score, best first."""

    row: Row
    found: list[list[tuple[float, int]]]


class Filler:
    """A masked language model on an engine, with its tokenizer."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._engine = engine

    def rows(self, texts: Sequence[str], longest: int) -> list[Row]:
        """Returns the tokens of texts, in which the masks are the hidden ones.

        Raises:
            HttpError: 422 for a text without a mask, or with more than `longest` tokens.
        """
        mask, mask_id = self.tokenizer.mask_token, self.tokenizer.mask_token_id
        found: list[Row] = []
        for number, ids in enumerate(self.tokenizer(list(texts))["input_ids"]):
            hidden = [place for place, token in enumerate(ids) if token == mask_id]
            if not hidden:
                message = f"inputs[{number}] has no mask token; write {mask} for a hidden word"
                raise HttpError(422, "invalid_request", message)
            if len(ids) > longest:
                message = f"inputs[{number}] has {len(ids)} tokens; the limit is {longest}"
                raise HttpError(422, "too_long", message)
            found.append(Row(ids, (), hidden=hidden))
        return found

    def check(self, rows: Sequence[Row], top_k: int) -> None:
        """Raises HttpError 422 if the fillings of rows have more than ANSWER_TOKENS tokens."""
        tokens = top_k * sum(len(row.hidden) * len(row) for row in rows)
        if tokens > ANSWER_TOKENS:
            message = (
                f"the answer would have {tokens} tokens, because each filling has its whole text;"
                f" the limit is {ANSWER_TOKENS}: send fewer texts or masks, or a smaller top_k"
            )
            raise HttpError(422, "too_long", message)

    def fill(
        self, rows: Sequence[Row], top_k: int, limits: Limits, is_over: Callable[[], bool]
    ) -> list[Filled]:
        """Returns the `top_k` likeliest tokens of each mask of each row.

        Args:
            rows: The rows.
            top_k: Number of tokens for each mask; of a smaller vocabulary, all of them.
            limits: Limits of a batch.
            is_over: Returns True once nobody waits for the answer.

        Raises:
            DeadlineError: if `is_over` returns True before a batch.
        """
        filled: dict[int, Filled] = {}
        for part in _batches(rows, limits):
            if is_over():
                raise DeadlineError
            chosen = [rows[number] for number in part]
            filled.update(zip(part, self._fill_batch(chosen, top_k), strict=True))
        return [filled[number] for number in range(len(rows))]

    def render(
        self, filled: Filled, is_over: Callable[[], bool]
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """Returns the fillings of a text as transformers' pipeline does.

        They are a list for a text with one mask, else a list for each mask.

        Raises:
            DeadlineError: if `is_over` returns True before a mask.
        """
        row, rows = filled.row, []
        is_single = len(row.hidden) == 1
        for place, best in zip(row.hidden, filled.found, strict=True):
            if is_over():
                raise DeadlineError
            rows.append(
                [self._filling(row.ids, place, *each, is_single=is_single) for each in best]
            )
        return rows[0] if is_single else rows

    def _filling(
        self, ids: Sequence[int], place: int, score: float, token: int, *, is_single: bool
    ) -> dict[str, Any]:
        tokens = [*ids[:place], token, *ids[place + 1 :]]
        shown = [each for each in tokens if each != self.tokenizer.pad_token_id]
        return {
            "score": score,
            "token": token,
            "token_str": self.tokenizer.decode([token]),
            # other masks stay visible
            "sequence": self.tokenizer.decode(shown, skip_special_tokens=is_single),
        }

    def _fill_batch(self, rows: Sequence[Row], top_k: int) -> Iterator[Filled]:
        scores = softmax(self._engine.run(rows))
        if not np.isfinite(scores).all():
            raise HttpError(500, "internal", "the model's scores are not finite")
        found = _best(scores, top_k)
        for row in rows:
            yield Filled(row, [next(found) for _ in row.hidden])


def _best(scores: Logits, top_k: int) -> Iterator[list[tuple[float, int]]]:
    """Yields the `top_k` largest scores of each mask with their tokens, [masks, vocabulary]."""
    count = min(top_k, scores.shape[1])
    for row in scores:
        chosen = np.argpartition(row, -count)[-count:]
        tokens = chosen[np.argsort(-row[chosen], kind="stable")]
        yield list(zip(row[tokens].tolist(), tokens.tolist(), strict=True))


def _batches(rows: Sequence[Row], limits: Limits) -> Iterator[list[int]]:
    """Yields the numbers of the rows of each batch, which have similar lengths."""
    part: list[int] = []
    for number in np.argsort([len(row) for row in rows], kind="stable").tolist():
        tokens = (len(part) + 1) * len(rows[number])
        if part and (len(part) == limits.batch_rows or tokens > limits.batch_tokens):
            yield part
            part = []
        part.append(number)
    yield part
