"""Rows that one call of transformers' `generate` writes: which have ended, and which must end."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Batch:
    """Reports each row's tokens once its text is complete; `generate` returns all rows at its end.

    Rows that nobody waits for any more end at the next step and are not reported.
    """

    def __init__(
        self,
        rows: int,
        ends: frozenset[int],
        is_over: Callable[[int], bool],
        on_ended: Callable[[int, list[int]], None],
    ) -> None:
        """Describes a batch.

        Args:
            rows: Number of rows.
            ends: Tokens that end a text.
            is_over: Returns whether a row must end, by its number.
            on_ended: Called once for a row, with its number and the tokens after the start token.
        """
        self._open, self._rows = set(range(rows)), rows
        self._ends, self._is_over, self._on_ended = ends, is_over, on_ended
        self._best: torch.Tensor | None = None
        """Best complete draft of each row of a beam search, [rows, tokens]."""

    def must_end(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns, as [drafts] of bool, whether a draft stops; a criterion of transformers.

        Without beam search, the draft of a row is its text.
        """
        drafts = len(input_ids) // self._rows
        if drafts == 1:
            last = input_ids[:, -1].tolist()
            for number in [each for each in self._open if last[each] in self._ends]:
                self._end(number, input_ids[number])
        over = [self._is_over(number) for number in range(self._rows)]
        return torch.tensor(over, device=input_ids.device).repeat_interleave(drafts)

    @contextlib.contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Reports the rows of a beam search whose best draft can no longer change.

        Criteria see drafts but not which of them are complete and best, so two methods of the
        model are wrapped. Rows are reported at the end of the search if a release lacks them.
        """
        try:
            update = model._update_finished_beams
            has_unfinished = model._beam_search_has_unfinished_sequences
        except AttributeError:
            yield
            return

        def update_and_read(**state: Any) -> Any:
            found = update(**state)
            self._best = found[0][:, 0]
            return found

        def read_and_ask(improvable: Any, finished: Any, hits: Any, early: Any) -> Any:
            complete = ~improvable[:, 0]
            if early is True:
                complete = complete | finished.all(dim=1)
            self._end_complete(complete.tolist())
            return has_unfinished(improvable, finished, hits, early)

        model._update_finished_beams = update_and_read
        model._beam_search_has_unfinished_sequences = read_and_ask
        try:
            yield
        finally:
            del model._update_finished_beams, model._beam_search_has_unfinished_sequences

    def end_all(self, found: torch.Tensor) -> None:
        """Reports the remaining rows, given the tokens of all rows, [rows, tokens]."""
        for number in sorted(self._open):
            self._end(number, found[number])

    def _end_complete(self, complete: list[bool]) -> None:
        assert self._best is not None
        for number in [each for each in self._open if complete[each]]:
            self._end(number, self._best[number])

    def _end(self, number: int, tokens: torch.Tensor) -> None:
        self._open.remove(number)
        if not self._is_over(number):
            self._on_ended(number, tokens[1:].tolist())
