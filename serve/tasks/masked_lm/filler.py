"""Fills the masks of texts with a masked language model, one batch after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.precision import AUTOCAST
from serve.batching.client import DeadlineError
from serve.http.errors import HttpError

BATCH_TOKENS = 2048
"""Most padded tokens of a forward pass, each of which is scored with the whole vocabulary."""
ANSWER_TOKENS = 2**22
"""Most tokens of all fillings of a request, each of which repeats its whole text."""

Row = list[int]


@dataclass(frozen=True, slots=True)
class Filled:
    """The likeliest tokens of the masks of one text, each with its score, best first."""

    ids: Row
    places: list[int]
    """Where the masks are."""
    found: list[list[tuple[float, int]]]


class Filler:
    """A masked language model with its tokenizer."""

    def __init__(self, folder: Path, device: Device, precision: Precision, threads: int) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        if device == "cpu":
            torch.set_num_threads(threads)
        model = transformers.AutoModelForMaskedLM.from_pretrained(
            folder, use_safetensors=True, dtype=AUTOCAST.get(precision, torch.float32)
        )
        self._model: Any = model.to(device).eval()

    def rows(self, texts: Sequence[str], longest: int) -> list[Row]:
        """Returns the tokens of texts.

        Raises:
            HttpError: 422 for a text without a mask, or with more than `longest` tokens.
        """
        mask = self.tokenizer.mask_token
        found: list[Row] = self.tokenizer(list(texts))["input_ids"]
        for number, ids in enumerate(found):
            if self.tokenizer.mask_token_id not in ids:
                message = f"inputs[{number}] has no mask token; write {mask} for a hidden word"
                raise HttpError(422, "invalid_request", message)
            if len(ids) > longest:
                message = f"inputs[{number}] has {len(ids)} tokens; the limit is {longest}"
                raise HttpError(422, "too_long", message)
        return found

    def check(self, rows: Sequence[Row], top_k: int) -> None:
        """Raises HttpError 422 if the fillings of rows have more than ANSWER_TOKENS tokens."""
        mask = self.tokenizer.mask_token_id
        tokens = top_k * sum(row.count(mask) * len(row) for row in rows)
        if tokens > ANSWER_TOKENS:
            message = (
                f"the answer would have {tokens} tokens, because each filling has its whole text;"
                f" the limit is {ANSWER_TOKENS}: send fewer texts or masks, or a smaller top_k"
            )
            raise HttpError(422, "too_long", message)

    @torch.inference_mode()
    def fill(self, rows: Sequence[Row], top_k: int, is_over: Callable[[], bool]) -> list[Filled]:
        """Returns the `top_k` likeliest tokens of each mask of each row.

        Raises:
            DeadlineError: if `is_over` returns True before a batch.
        """
        filled: dict[int, Filled] = {}
        for part in _batches(rows):
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
        is_single, rows = len(filled.places) == 1, []
        for place, best in zip(filled.places, filled.found, strict=True):
            if is_over():
                raise DeadlineError
            rows.append(
                [self._filling(filled.ids, place, *each, is_single=is_single) for each in best]
            )
        return rows[0] if is_single else rows

    def _filling(
        self, ids: Row, place: int, score: float, token: int, *, is_single: bool
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
        given = self.tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt")
        given = given.to(self._model.device)
        names = ("input_ids", "attention_mask")
        logits = self._model(**{name: given[name] for name in names}).logits
        is_mask = given["input_ids"] == self.tokenizer.mask_token_id
        scores = logits[is_mask].float().softmax(dim=-1)
        values, tokens = scores.topk(min(top_k, scores.shape[-1]))
        if not bool(torch.isfinite(values).all()):
            raise HttpError(500, "internal", "the model's scores are not finite")
        found = iter(zip(values.tolist(), tokens.tolist(), strict=True))
        for row in rows:
            places = [at for at, one in enumerate(row) if one == self.tokenizer.mask_token_id]
            yield Filled(row, places, [list(zip(*next(found), strict=True)) for _ in places])


def _batches(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yields the numbers of rows of similar length, at most BATCH_TOKENS padded tokens together."""
    part: list[int] = []
    for number in np.argsort([len(row) for row in rows], kind="stable").tolist():
        if part and (len(part) + 1) * len(rows[number]) > BATCH_TOKENS:
            yield part
            part = []
        part.append(number)
    yield part
