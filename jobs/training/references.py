"""What the base gives every row, for losses that compare with it: computed once and cached."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.training.config import TrainingConfig, eval_batch
from jobs.training.corpus import Corpus
from jobs.training.data import cache, encoding
from jobs.training.data.tokens import TokenSet, TokenStore
from jobs.training.model import adapter
from jobs.training.model.precision import autocast
from jobs.training.task import TaskTraining
from jobs.training.world import World

LABELS = "labels"
"""Column of a cached table."""


def with_references(
    corpus: Corpus, training: TaskTraining, model: Any, config: TrainingConfig, world: World
) -> Corpus:
    """Returns the corpus with the task's `reference` of every row as its labels, (rows, n).

    The model must be as it was loaded: an untrained adapter changes nothing. All workers must call
    this; they divide the rows, and machines that know them already do not compute them again.
    """
    key = _key(corpus, model, config)
    found = cache.find(key)
    if not all(world.gather(found is not None)):
        made = _scored(corpus, training, model, config, world)
        found = cache.table(key, lambda: made)
    assert found is not None
    values = encoding.labels(found[LABELS])
    train, rest = np.split(values, [len(corpus.train)])
    return dataclasses.replace(
        corpus,
        train=dataclasses.replace(corpus.train, labels=train),
        eval=dataclasses.replace(corpus.eval, labels=rest),
    )


def is_known(corpus: Corpus, model: Any, config: TrainingConfig) -> bool:
    """Returns whether this machine has the references of a run already."""
    return cache.find(_key(corpus, model, config)) is not None


@torch.no_grad()
def _scored(
    corpus: Corpus, training: TaskTraining, model: Any, config: TrainingConfig, world: World
) -> pa.Table:
    """Returns a table of the references of the training rows, then of the evaluation rows."""
    model.eval()
    try:
        with autocast(config.precision, world.device):
            parts = [
                _of_rows(tokens, training, model, config, world)
                for tokens in (corpus.train, corpus.eval)
            ]
    finally:
        model.train()
    return pa.table({LABELS: encoding.vectors(np.concatenate(parts))})


def _of_rows(
    tokens: TokenSet, training: TaskTraining, model: Any, config: TrainingConfig, world: World
) -> NDArray[np.float32]:
    """Returns the references of all rows, (rows, n), on every worker.

    Rows share their batch with the same others on any number of workers, because a row's rounding
    depends on its batch.
    """
    order, size = np.argsort(-tokens.lengths, kind="stable"), eval_batch(config)
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    store, own = TokenStore(tokens, torch.device("cpu")), list[NDArray[np.float32]]()
    for rows in parts[world.rank :: world.size]:
        batch = store.gather(torch.from_numpy(rows), int(tokens.lengths[rows].max()))
        placed = {name: each.to(world.device) for name, each in batch.items()}
        own.append(training.reference(model, placed).float().cpu().numpy())
    shares = world.gather(own)
    found = [shares[at % world.size][at // world.size] for at in range(len(parts))]
    values = np.empty((len(tokens), found[0].shape[1]), np.float32)
    values[order] = np.concatenate(found)
    return values


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
