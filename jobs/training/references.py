"""What the base gives every row, for losses that compare with it: computed once and cached."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.training.config import TrainingConfig, eval_batch
from jobs.training.corpus import Corpus
from jobs.training.data import cache, encoding
from jobs.training.data.batches import Indices
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import TokenSet, TokenStore
from jobs.training.model import adapter
from jobs.training.model.precision import autocast
from jobs.training.task import TaskTraining
from jobs.training.world import World

LABELS = "labels"
"""Column of a cached table."""
BLOCK = 8
"""Batches of each worker between two reports of progress."""


def with_references(
    corpus: Corpus,
    training: TaskTraining,
    model: Any,
    config: TrainingConfig,
    world: World,
    progress: Progress | None = None,
) -> Corpus:
    """Returns the corpus with the task's `reference` of every row as its labels, (rows, n).

    The model must be as it was loaded, whole on each device: an untrained adapter changes nothing.
    All workers must call this; they divide the rows, and do not compute them again where all of
    their machines know them. `progress` is told the scored rows and all rows.
    """
    key = _key(corpus, model, config)
    found = cache.find(key)
    if not all(world.gather(found is not None)):
        values = _scored(corpus, training, model, config, world, progress or _ignore)
        found = cache.table(key, lambda: pa.table({LABELS: encoding.vectors(values)}))
    assert found is not None
    values = encoding.labels(found[LABELS]).astype(np.float32)
    assert len(values) == len(corpus.train) + len(corpus.eval)
    train, rest = np.split(values, [len(corpus.train)])
    return dataclasses.replace(
        corpus,
        train=dataclasses.replace(corpus.train, labels=train),
        eval=dataclasses.replace(corpus.eval, labels=rest),
    )


def is_known(corpus: Corpus, model: Any, config: TrainingConfig) -> bool:
    """Returns whether this machine has the references of a run already."""
    return cache.find(_key(corpus, model, config)) is not None


def _scored(
    corpus: Corpus,
    training: TaskTraining,
    model: Any,
    config: TrainingConfig,
    world: World,
    progress: Progress,
) -> NDArray[np.float32]:
    """Returns the references of the training rows, then of the evaluation rows, (rows, n)."""
    splits = (corpus.train, corpus.eval)
    total, parts = sum(map(len, splits)), list[NDArray[np.float32]]()
    model.eval()
    try:
        for tokens in splits:
            told = functools.partial(_add, progress, sum(map(len, parts)), total)
            parts.append(_Scorer(tokens, training, model, config, world).all_rows(told))
    finally:
        model.train()
    return np.concatenate(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Scorer:
    """Scores the rows of a split with the base; all workers score it together."""

    tokens: TokenSet
    training: TaskTraining
    model: Any
    config: TrainingConfig
    world: World

    def all_rows(self, on_rows: Callable[[int], None]) -> NDArray[np.float32]:
        """Returns the references of all rows, (rows, n), and tells how many are scored.

        Rows share their batch with the same others on any number of workers, because a row's
        rounding depends on its batch.
        """
        order = np.argsort(-self.tokens.lengths, kind="stable")
        batches = _divided(order, eval_batch(self.config))
        store, found = TokenStore(self.tokens, torch.device("cpu")), list[NDArray[np.float32]]()
        for block in _divided(batches, BLOCK * self.world.size):
            own = [self._rows(rows, store) for rows in block[self.world.rank :: self.world.size]]
            shares = self.world.gather(own)
            found += [shares[n % len(shares)][n // len(shares)] for n in range(len(block))]
            on_rows(sum(map(len, found)))
        values = np.empty((len(order), found[0].shape[1]), np.float32)
        values[order] = np.concatenate(found)
        return values

    @torch.no_grad()
    def _rows(self, rows: Indices, store: TokenStore) -> NDArray[np.float32]:
        """Returns the references of a batch, (rows, n)."""
        batch = store.gather(torch.from_numpy(rows), int(self.tokens.lengths[rows].max()))
        placed = {name: each.to(self.world.device) for name, each in batch.items()}
        with autocast(self.config.precision, self.world.device):
            found = self.training.reference(self.model, placed).float()
        values: NDArray[np.float32] = found.cpu().numpy()
        return values


def _divided(items: Any, size: int) -> list[Any]:
    """Returns items in parts of `size`, the last of which may be smaller."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def _add(progress: Progress, before: int, total: int, done: int) -> None:
    """Reports the scored rows of a split and of those before it."""
    progress(before + done, total)


def _ignore(done: int, total: int) -> None:
    """Ignores progress."""


def _key(corpus: Corpus, model: Any, config: TrainingConfig) -> dict[str, Any]:
    return {
        "references": config.model.task,
        "rows": corpus.digest,
        "pads_left": corpus.train.pads_left,
        "weights": _fingerprint(model),
        "precision": config.precision,
    }


@torch.no_grad()
def _fingerprint(model: Any) -> list[float]:
    """Returns the sum of each weight of the base; what an adapter adds is not among them."""
    weights = list(model.parameters())
    if adapter.has_adapter(model):
        weights = [weight for weight in weights if not weight.requires_grad]
    sums: list[float] = torch.stack([each.sum(dtype=torch.float64) for each in weights]).tolist()
    return sums
