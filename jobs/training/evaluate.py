"""Judging the model on the evaluation rows, each counted once, by all workers together."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from jobs.spec import task_registry
from jobs.spec.train import Precision
from jobs.training import random_states
from jobs.training.config import TrainingConfig, eval_batch
from jobs.training.data import batches, encoding
from jobs.training.data.batches import FILLER, Indices
from jobs.training.model import parallel
from jobs.training.model.precision import autocast
from jobs.training.session import Session
from jobs.training.task import Batch, Generate, training_of
from jobs.training.world import World


def final_precision(config: TrainingConfig, world: World) -> Precision:
    """In which the trained model is judged: that of its endpoint, so that it scores the same.

    An adapter's base and sharded weights are there in the training precision alone.
    """
    whole = config.model.adapter is None and not parallel.is_sharded(config, world)
    return "fp32" if whole else config.precision


@torch.no_grad()
def evaluate(
    session: Session, number_format: Precision, *, limit: int | None = None
) -> dict[str, float]:
    """Metrics of the task and the mean loss over the evaluation rows, or a sample of `limit`."""
    session.update.settle()
    session.model.eval()
    try:
        with _uncompiled(session.config), random_states.kept(session.world.device):
            return _judge(session, number_format, limit)
    finally:
        session.model.train()


@torch.no_grad()
def sample_scores(session: Session, number_format: Precision) -> list[list[float]]:
    """Scores of the sampled evaluation rows, as the task has them.

    Every worker scores all of them, because sharded weights are gathered by all together.
    """
    training = training_of(session.config.model.task)
    rows = torch.from_numpy(encoding.sample(len(session.corpus.eval)))
    lengths = session.corpus.eval.lengths
    session.update.settle()
    session.model.eval()
    found: list[list[float]] = []
    try:
        with _uncompiled(session.config), random_states.kept(session.world.device):
            for part in torch.split(rows, eval_batch(session.config)):
                gathered = session.eval_store.gather(
                    part.to(session.eval_store.place), int(lengths[part.numpy()].max())
                )
                batch = {name: each.to(session.world.device) for name, each in gathered.items()}
                with autocast(number_format, session.world.device):
                    found += training.scores(session.model, batch).tolist()
    finally:
        session.model.train()
    return found


def _judge(session: Session, number_format: Precision, limit: int | None) -> dict[str, float]:
    world, names = session.world, session.corpus.label_names
    training, total = training_of(session.config.model.task), None
    for batch, counts in _batches(session, limit):
        with autocast(number_format, world.device):
            sums = training.sums(session.model, batch, counts, names)
        total = sums if total is None else total + sums
    assert total is not None
    values = training.metrics(np.array(world.sum_numbers(total.tolist())), names)
    wanted = session.config.metrics
    metrics = task_registry.find(session.config.model.task).metrics
    if limit is None and any(each.is_generated and each.name in wanted for each in metrics):
        values |= training.generated(
            session.config.data, session.corpus.tokenizer, _generator(session, number_format)
        )
    return {**{name: values[name] for name in wanted if name in values}, "loss": values["loss"]}


def padded_tokens(session: Session, limit: int | None) -> int:
    """Tokens, padding among them, of an evaluation of all rows or a sample of `limit`."""
    lengths = session.corpus.eval.lengths
    rows = _rounds(session, limit)
    return sum(everyone.size * _width(everyone, lengths) for everyone in rows)


def _rounds(session: Session, limit: int | None) -> Indices:
    """Rows of each forward pass, (rounds, workers, rows), of like length, FILLER where none is.

    The longest come first: what they took of a GPU's memory is then enough for all others, where
    growing batches would each take more besides. A sample has the longest row and all lengths.
    """
    size, workers = eval_batch(session.config), session.world.size
    order = np.argsort(-session.corpus.eval.lengths, kind="stable")
    if limit is not None and limit < len(order):
        order = order[np.linspace(0, len(order) - 1, limit).astype(np.int64)]
    rounds = math.ceil(len(order) / (size * workers))
    padded = np.full(rounds * workers * size, FILLER)
    padded[: len(order)] = order
    return padded.reshape(rounds, workers, size)


def _width(everyone: Indices, lengths: Indices) -> int:
    return int(batches.batch_lengths(everyone, lengths).max())


def _batches(session: Session, limit: int | None) -> Iterator[tuple[Batch, torch.Tensor]]:
    """Batches of this worker, and how often each row counts: 0 for rows that only fill up.

    Every worker gets as many, because sharded weights are gathered by all of them together.
    """
    world, tokens = session.world, session.corpus.eval
    rows = _rounds(session, limit)
    for everyone in rows:
        own = everyone[world.rank]
        width = _width(everyone, tokens.lengths)
        counts = torch.from_numpy((own != FILLER).astype(np.float32)).to(world.device)
        # filler repeats a real row of its batch: another may be cut at this width, and some models
        # fail without a row's last token
        filled = np.where(own == FILLER, everyone.max(), own)
        index = torch.from_numpy(filled).to(session.eval_store.place)
        gathered = session.eval_store.gather(index, width)
        yield {name: tensor.to(world.device) for name, tensor in gathered.items()}, counts


def _generator(session: Session, number_format: Precision) -> Generate:
    """Samples answers to prompts, the same ones at every evaluation of equal weights."""
    world, config = session.world, session.config
    together = parallel.is_sharded(config, world)  # then every worker takes part in every answer

    def generate(prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        torch.manual_seed(config.seed)
        found = []
        for prompt in prompts if together else prompts[world.rank :: world.size]:
            ids = torch.tensor([prompt[-config.data.max_length :]], device=world.device)
            with autocast(number_format, world.device):
                answer = session.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=most_tokens,
                    do_sample=True,
                    pad_token_id=session.corpus.eval.pad_token_id,
                    synced_gpus=together,
                )
            found.append(answer[0, ids.shape[1] :].tolist())
        return found if together else [answer for part in world.gather(found) for answer in part]

    return generate


def _uncompiled(config: TrainingConfig) -> contextlib.AbstractContextManager[object]:
    """Layers compiled for training are not compiled again for judging."""
    if not config.compile:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
