"""Generates text with a session's model in an evaluation; workers divide the prompts."""

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from jobs.errors import DataError
from jobs.spec.train import Precision
from jobs.training.config import eval_batch
from jobs.training.data.batches import Indices
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, TokenSet
from jobs.training.logits_check import EXACT_BOUND, ROUNDED_BOUND
from jobs.training.model import parallel
from jobs.training.model.adapter import unwrapped
from jobs.training.model.positions import learned_positions
from jobs.training.model.precision import autocast
from jobs.training.session import Session

NO_RESPONSE = (
    "no evaluation row ends within data.max_length, so written answers have nothing to be compared"
    " with; raise it, or remove their metrics from train.eval.metrics"
)
Response = tuple[list[int], list[int]]
"""Token ids of a prompt, and those of its response without the end token."""


class SessionGenerator:
    """A `jobs.training.task.Generator`; equal weights give equal text on any number of workers."""

    def __init__(
        self, session: Session, number_format: Precision, rows: Indices, *, is_complete: bool = True
    ) -> None:
        """Args: the session, the precision, and the evaluation rows to answer, in this order.

        `is_complete`: whether these are all rows.
        """
        self._is_complete = is_complete
        self._session, self._precision, self._rows = session, number_format, rows
        # workers that hold shards generate each answer together
        self._is_sharded = parallel.is_sharded(session.config, session.world)

    def sample(self, prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        """Returns a sampled answer to each prompt, of at most `most_tokens` tokens."""
        world, config = self._session.world, self._session.config
        torch.manual_seed(config.seed)
        found = []
        for prompt in prompts if self._is_sharded else prompts[world.rank :: world.size]:
            ids = torch.tensor([prompt[-config.data.max_length :]], device=world.device)
            self._gather_weights()
            with autocast(self._precision, world.device):
                answer = self._session.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=most_tokens,
                    do_sample=True,
                    pad_token_id=self._session.corpus.eval.pad_token_id,
                    synced_gpus=self._is_sharded,
                )
            found.append(answer[0, ids.shape[1] :].tolist())
        if self._is_sharded:
            return found
        return [answer for part in world.gather(found) for answer in part]

    def answers(self) -> dict[int, list[int]]:
        """Returns what the model writes for each evaluation row, by row.

        Rows share their batch with the same others on any number of workers, because a row's
        rounding depends on its batch.
        """
        session, world = self._session, self._session.world
        size = eval_batch(session.config)
        parts = [self._rows[first : first + size] for first in range(0, len(self._rows), size)]
        own = parts if self._is_sharded else parts[world.rank :: world.size]
        found = {row: ids for part in own for row, ids in self._written(part).items()}
        shares = [found] if self._is_sharded else world.gather(found)
        # in the order of rows, because sums of metrics are rounded in their order
        return dict(sorted((row, ids) for share in shares for row, ids in share.items()))

    def responses(self) -> dict[int, tuple[list[int], list[int]]]:
        """Returns what a decoder writes in place of each row's last response, and that, by row.

        Rows share their batch with the same others on any number of workers.
        """
        session, world = self._session, self._session.world
        ends, tokens = set(session.corpus.end_tokens), session.corpus.eval
        most = session.config.data.max_length
        cases = {row: _last_response(tokens, row, ends, most) for row in self._rows.tolist()}
        whole = {row: case for row, case in cases.items() if case is not None}
        if self._is_complete and not whole:
            raise DataError(NO_RESPONSE)
        most_tokens = max((len(right) + 1 for _, right in whole.values()), default=0)
        order = sorted(whole, key=lambda row: (-len(whole[row][0]), row))
        prompts = {row: prompt for row, (prompt, _) in whole.items()}
        parts = self._parts(order, prompts, most_tokens)
        own = parts if self._is_sharded else parts[world.rank :: world.size]
        found = dict[int, list[int]]()
        for part in own:
            written = self._continued([whole[row][0] for row in part], most_tokens)
            found |= dict(zip(part, (_ended(ids, ends) for ids in written), strict=True))
        shares = [found] if self._is_sharded else world.gather(found)
        return dict(
            sorted((row, (ids, whole[row][1])) for share in shares for row, ids in share.items())
        )

    def _parts(
        self, order: Sequence[int], prompts: Mapping[int, list[int]], most_tokens: int
    ) -> list[list[int]]:
        """Returns the rows of each batch.

        Prompts of a batch have one length if padding changes answers, or leaves them no positions.
        """
        size, groups = eval_batch(self._session.config), [list(order)]
        has_room = not order or self._room(len(prompts[order[0]])) >= most_tokens
        if not (self._pads_exactly([prompts[row] for row in order]) and has_room):
            lengths = itertools.groupby(order, key=lambda row: len(prompts[row]))
            groups = [list(rows) for _, rows in lengths]
        return [
            rows[first : first + size] for rows in groups for first in range(0, len(rows), size)
        ]

    def _pads_exactly(self, prompts: Sequence[list[int]]) -> bool:
        """Returns whether the shortest prompt is continued alike beside the longest one."""
        if not prompts or len(prompts[0]) == len(prompts[-1]):
            return True
        (alone,) = self._scores([prompts[-1]])
        _, beside = self._scores([prompts[0], prompts[-1]])
        bound = EXACT_BOUND if self._precision == "fp32" else ROUNDED_BOUND
        is_exact = bool((alone - beside).abs().max() <= bound * alone.abs().max().clamp(min=1e-6))
        return all(self._session.world.gather(is_exact))

    def _scores(self, prompts: Sequence[list[int]]) -> torch.Tensor:
        """Returns the logits of the token behind each prompt, (prompts, vocabulary)."""
        found = self._generated(prompts, 1, output_logits=True, return_dict_in_generate=True)
        logits: torch.Tensor = found.logits[0].float()
        return logits

    def _continued(self, prompts: Sequence[list[int]], most_tokens: int) -> list[list[int]]:
        """Returns the likeliest tokens behind each prompt, with what follows an end token."""
        width = max(map(len, prompts))
        written: list[list[int]] = self._generated(prompts, most_tokens)[:, width:].tolist()
        return written

    def _generated(self, prompts: Sequence[list[int]], most_tokens: int, **how: Any) -> Any:
        session, device = self._session, self._session.world.device
        pad, width = session.corpus.eval.pad_token_id, max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(each)) + each for each in prompts], device=device)
        mask = [[0] * (width - len(each)) + [1] * len(each) for each in prompts]
        bare = unwrapped(session.model)
        own, likeliest = bare.generation_config, transformers.GenerationConfig()
        likeliest.eos_token_id = list(session.corpus.end_tokens) or None
        likeliest.pad_token_id = pad
        bare.generation_config = likeliest  # the base's may penalise repetition, or search
        try:
            self._gather_weights()
            with autocast(self._precision, device):
                return session.model.generate(
                    input_ids=ids,
                    attention_mask=torch.tensor(mask, device=device),
                    max_new_tokens=int(min(most_tokens, self._room(width))),
                    do_sample=False,
                    synced_gpus=self._is_sharded,
                    **how,
                )
        finally:
            bare.generation_config = own

    def _room(self, width: int) -> float:
        """Returns how many tokens may follow so many, for models with learned positions."""
        return learned_positions(unwrapped(self._session.model)) - width

    def _gather_weights(self) -> None:
        """Gathers what shards hold outside of layers, because `generate` passes by its hooks."""
        if self._is_sharded:
            self._session.model.unshard()

    def _written(self, rows: Indices) -> dict[int, list[int]]:
        session, world = self._session, self._session.world
        width = int(session.corpus.eval.lengths[rows].max())
        store = session.eval_store
        batch = store.gather(torch.from_numpy(np.asarray(rows)).to(store.place), width)
        self._gather_weights()
        with autocast(self._precision, world.device):
            written = session.model.generate(
                input_ids=batch["input_ids"].to(world.device),
                attention_mask=batch["attention_mask"].to(world.device),
                synced_gpus=self._is_sharded,
            )
        return dict(zip(rows.tolist(), written.tolist(), strict=True))


def _last_response(
    tokens: TokenSet, row: int, ends: Container[int], max_length: int
) -> Response | None:
    """Returns the prompt and the last response of a row; None if the response may be cut off."""
    part = slice(int(tokens.offsets[row]), int(tokens.offsets[row + 1]))
    ids, mask = (tokens.columns[name][part].tolist() for name in (INPUT_IDS, LOSS_MASK))
    stop = len(mask) - mask[::-1].index(1)
    start = stop - next((n for n, one in enumerate(mask[:stop][::-1]) if not one), stop)
    response = ids[start:stop]
    right = _ended(response, ends)
    is_whole = len(right) < len(response) or len(ids) < max_length
    return (ids[:start], right) if start and is_whole else None


def _ended(ids: Sequence[int], ends: Container[int]) -> list[int]:
    """Returns the tokens before the first end token."""
    return list(itertools.takewhile(lambda token: token not in ends, ids))
