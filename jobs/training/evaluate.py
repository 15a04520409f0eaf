"""Evaluates the model: workers divide the evaluation rows, and each row counts once."""

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
    """Returns the precision of the last evaluation: fp32, which the saved weights have.

    Adapters and sharded models are evaluated in the training precision, because their weights are
    in memory in this precision only.
    """
    has_fp32 = config.model.adapter is None and not parallel.is_sharded(config, world)
    return "fp32" if has_fp32 else config.precision


@torch.no_grad()
def evaluate(
    session: Session, number_format: Precision, *, limit: int | None = None
) -> dict[str, float]:
    """Returns the job's metrics and the mean `loss` over all evaluation rows, or `limit` of them.

    All workers must call this.
    """
    with _evaluating(session):
        return _evaluate_rows(session, number_format, limit)


@torch.no_grad()
def sample_scores(session: Session, number_format: Precision) -> list[list[float]]:
    """Returns the task's scores of the sampled evaluation rows, row by row.

    Every worker scores all rows, because gathering sharded weights needs all workers.
    """
    training = training_of(session.config.model.task)
    rows = torch.from_numpy(encoding.sample(len(session.corpus.eval)))
    lengths = session.corpus.eval.lengths
    found: list[list[float]] = []
    with _evaluating(session):
        for part in torch.split(rows, eval_batch(session.config)):
            gathered = session.eval_store.gather(
                part.to(session.eval_store.place), int(lengths[part.numpy()].max())
            )
            batch = {name: each.to(session.world.device) for name, each in gathered.items()}
            with autocast(number_format, session.world.device):
                found += training.scores(session.model, batch).tolist()
    return found


@contextlib.contextmanager
def _evaluating(session: Session) -> Iterator[None]:
    """Gathers the weights and runs the block in evaluation mode; random states stay as they are."""
    session.update.synchronize(with_moments=False)
    session.model.eval()
    try:
        with _uncompiled(session.config), random_states.kept(session.world.device):
            yield
    finally:
        session.model.train()


def _evaluate_rows(
    session: Session, number_format: Precision, limit: int | None
) -> dict[str, float]:
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
    """Returns the tokens, with padding, of an evaluation of all rows or of `limit` rows."""
    lengths = session.corpus.eval.lengths
    rows = _rounds(session, limit)
    return sum(batch.size * _width(batch, lengths) for batch in rows)


def _rounds(session: Session, limit: int | None) -> Indices:
    """Returns the rows of each forward pass, (rounds, workers, rows), filled up with FILLER.

    Rows of a round have similar lengths. The longest rows come first, because later rounds then fit
    into the same GPU memory, where growing batches would allocate again. A sample contains the
    longest row and all lengths.
    """
    size, workers = eval_batch(session.config), session.world.size
    order = np.argsort(-session.corpus.eval.lengths, kind="stable")
    if limit is not None and limit < len(order):
        order = order[np.linspace(0, len(order) - 1, limit).astype(np.int64)]
    rounds = math.ceil(len(order) / (size * workers))
    padded = np.full(rounds * workers * size, FILLER)
    padded[: len(order)] = order
    return padded.reshape(rounds, workers, size)


def _width(batch: Indices, lengths: Indices) -> int:
    """Returns the longest row of a round in tokens; `batch` is (workers, rows)."""
    return int(batches.batch_lengths(batch, lengths).max())


def _batches(session: Session, limit: int | None) -> Iterator[tuple[Batch, torch.Tensor]]:
    """Yields this worker's batches with the weight of each row, 0 for filler rows, (rows,).

    Every worker gets the same number, because gathering sharded weights needs all workers.
    """
    world, tokens = session.world, session.corpus.eval
    rows = _rounds(session, limit)
    for round_rows in rows:
        own = round_rows[world.rank]
        width = _width(round_rows, tokens.lengths)
        counts = torch.from_numpy((own != FILLER).astype(np.float32)).to(world.device)
        index = torch.from_numpy(batches.filled(own, round_rows.max()))
        gathered = session.eval_store.gather(index.to(session.eval_store.place), width)
        yield {name: tensor.to(world.device) for name, tensor in gathered.items()}, counts


def _generator(session: Session, number_format: Precision) -> Generate:
    """Returns a function that samples answers to prompts; equal weights give equal answers."""
    world, config = session.world, session.config
    sharded = parallel.is_sharded(config, world)  # then all workers generate each answer together

    def generate(prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        torch.manual_seed(config.seed)
        found = []
        for prompt in prompts if sharded else prompts[world.rank :: world.size]:
            ids = torch.tensor([prompt[-config.data.max_length :]], device=world.device)
            with autocast(number_format, world.device):
                answer = session.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=most_tokens,
                    do_sample=True,
                    pad_token_id=session.corpus.eval.pad_token_id,
                    synced_gpus=sharded,
                )
            found.append(answer[0, ids.shape[1] :].tolist())
        return found if sharded else [answer for part in world.gather(found) for answer in part]

    return generate


def _uncompiled(config: TrainingConfig) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which compiled layers run eagerly instead of compiling again."""
    if not config.compile:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
