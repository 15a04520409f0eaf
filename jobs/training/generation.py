"""Generates text with a session's model in an evaluation; workers divide the prompts."""

from collections.abc import Sequence

import numpy as np
import torch

from jobs.spec.train import Precision
from jobs.training.config import eval_batch
from jobs.training.data.batches import Indices
from jobs.training.model import parallel
from jobs.training.model.precision import autocast
from jobs.training.session import Session


class SessionGenerator:
    """A `jobs.training.task.Generator`; equal weights give equal text on any number of workers."""

    def __init__(self, session: Session, number_format: Precision, rows: Indices) -> None:
        """Args: the session, the precision, and the evaluation rows to answer, in this order."""
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

    def _written(self, rows: Indices) -> dict[int, list[int]]:
        session, world = self._session, self._session.world
        width = int(session.corpus.eval.lengths[rows].max())
        store = session.eval_store
        batch = store.gather(torch.from_numpy(np.asarray(rows)).to(store.place), width)
        if self._is_sharded:
            session.model.unshard()  # the encoder is run by itself, without the model's own hooks
        with autocast(self._precision, world.device):
            written = session.model.generate(
                input_ids=batch["input_ids"].to(world.device),
                attention_mask=batch["attention_mask"].to(world.device),
                synced_gpus=self._is_sharded,
            )
        return dict(zip(rows.tolist(), written.tolist(), strict=True))
