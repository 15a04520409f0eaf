"""Tries a model on a few tokens before the first step: its output layer, and its randomness."""

import dataclasses
from typing import Any

import torch

from jobs.training import random_states
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus
from jobs.training.data.tokens import TokenStore
from jobs.training.model import precision
from jobs.training.task import Batch, TaskTraining, training_of
from jobs.training.world import World

TRIED_TOKENS = 16
"""Tokens of a row with which a model is tried."""
LABELS = "labels"
"""The only part of a batch that has no tokens."""


def tried(model: Any, corpus: Corpus, config: TrainingConfig, world: World) -> TaskTraining:
    """Returns the task's half for a run, which has tried the model on a few rows."""
    found = training_of(config.model.task).for_run(
        config.data, corpus.train.labels, corpus.label_names, model
    )
    most_targets = config.micro_batch_size * int(corpus.train.targets.max())
    model.eval()
    try:
        with precision.autocast(config.precision, world.device):
            return found.tried(model, _few_tokens(corpus, world), most_targets)
    finally:
        model.train()


@torch.no_grad()
def draws(
    training: TaskTraining, model: Any, corpus: Corpus, config: TrainingConfig, world: World
) -> bool:
    """Returns whether the model draws random numbers in training."""
    weights = torch.ones(1, device=world.device)
    with (
        random_states.kept(world.device),
        random_states.drawn([model], world.device) as found,
        precision.autocast(config.precision, world.device),
    ):
        training.loss(model, _few_tokens(corpus, world), weights)
    return bool(found)


def _few_tokens(corpus: Corpus, world: World) -> Batch:
    """Returns a batch of the first tokens of the shortest training row."""
    tokens, first = corpus.train, torch.zeros(1, dtype=torch.int64, device=world.device)
    row = int(tokens.lengths.argmin())
    taken = dataclasses.replace(tokens.taken([row]), sample_slots=0)  # they are cut
    batch = TokenStore(taken, world.device).gather(first, int(tokens.lengths[row]))
    return {
        name: each if name == LABELS else each[:, :TRIED_TOKENS] for name, each in batch.items()
    }
