"""Evaluates the model: workers divide the evaluation rows, and each row counts once."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from jobs.spec import task_registry
from jobs.spec.train import Precision
from jobs.training import random_states
from jobs.training.config import TrainingConfig, eval_batch
from jobs.training.data import batches, encoding
from jobs.training.data.batches import FILLER, Indices
from jobs.training.data.tokens import IGNORED, INPUT_IDS, TOKEN_LABELS
from jobs.training.generation import SessionGenerator
from jobs.training.model import parallel
from jobs.training.model.precision import autocast
from jobs.training.quality import QualityReport
from jobs.training.scores import GatheredScores, OneForward, Scores
from jobs.training.session import Session
from jobs.training.task import Batch, training_of
from jobs.training.world import World

KEPT_NUMBERS = 2048
"""Most scores of a row's tokens that are kept beside a model."""


def final_precision(config: TrainingConfig, world: World) -> Precision:
    """Returns the precision of the last evaluation: fp32, which the saved weights have.

    Adapters and sharded models are evaluated in the training precision, because their weights are
    in memory in this precision only, and what is compared with the base as the base was scored.
    """
    compares = training_of(config.model.task).has_references
    is_narrow = config.model.adapter is not None or parallel.is_sharded(config, world)
    has_fp32 = not is_narrow and not compares
    return "fp32" if has_fp32 else config.precision


@torch.no_grad()
def evaluate(
    session: Session,
    number_format: Precision,
    *,
    limit: int | None = None,
    generates: bool = True,
) -> dict[str, float]:
    """Returns the job's metrics and the mean `loss` over all evaluation rows, or `limit` of them.

    Without `generates`, metrics of generated text are left out. All workers must call this.
    """
    with _evaluating(session):
        values, _ = _evaluate_rows(session, number_format, limit)
        if generates:
            values |= _generated(session, number_format, limit)
    return _wanted(session, values)


@torch.no_grad()
def evaluate_last(
    session: Session, number_format: Precision
) -> tuple[dict[str, float], QualityReport | None]:
    """Returns what `evaluate` does, and the main worker's report on all rows.

    The report is None for tasks without one, and on other workers. All workers must call this.
    """
    training, corpus = session.training, session.corpus
    with _evaluating(session):
        values, scores = _evaluate_rows(session, number_format, None, gathers=training.has_quality)
        values |= _generated(session, number_format, None)
    metrics = _wanted(session, values)
    if scores is None or not training.has_quality or not session.world.is_main:
        return metrics, None

    def text_of(row: int) -> str:
        part = slice(int(corpus.eval.offsets[row]), int(corpus.eval.offsets[row + 1]))
        ids = corpus.eval.columns[INPUT_IDS][part].tolist()
        return str(corpus.tokenizer.decode(ids, skip_special_tokens=True))

    return metrics, training.quality(scores, corpus.eval.labels, corpus.label_names, text_of)


@torch.no_grad()
def sample_scores(
    session: Session, number_format: Precision, limit: int | None = None
) -> list[Any]:
    """Returns the scores that are saved with a model: of the sampled rows, or `limit` of them.

    Every worker scores all rows, because gathering sharded weights needs all workers.
    """
    rows = torch.from_numpy(encoding.sample(len(session.corpus.eval)))[:limit]
    lengths = session.corpus.eval.lengths
    found: list[Any] = []
    with _evaluating(session):
        for part in torch.split(rows, eval_batch(session.config)):
            gathered = session.eval_store.gather(
                part.to(session.eval_store.place), int(lengths[part.numpy()].max())
            )
            batch = {name: each.to(session.world.device) for name, each in gathered.items()}
            with autocast(number_format, session.world.device):
                found += kept_scores(session.training.scores(session.model, batch), batch)
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


def kept_scores(scores: torch.Tensor, batch: Batch) -> list[Any]:
    """Returns the scores of each row that are kept beside a model, as lists.

    Of scores for each token, (rows, tokens, labels), those of the first labelled tokens: at most
    KEPT_NUMBERS numbers for each row, so that long rows stay small on disk.
    """
    if TOKEN_LABELS not in batch:
        return list(scores.tolist())
    most = max(1, KEPT_NUMBERS // scores.shape[-1])
    is_labelled = batch[TOKEN_LABELS] != IGNORED
    pairs = zip(scores, is_labelled, strict=True)
    return [row[labelled][:most].tolist() for row, labelled in pairs]


def _evaluate_rows(
    session: Session, number_format: Precision, limit: int | None, *, gathers: bool = False
) -> tuple[dict[str, float], Scores | None]:
    """Returns the metrics, and the scores of all rows if they are needed, else None.

    With `limit` no scores are gathered, because metrics of some rows are not those of all.
    """
    world, names = session.world, session.corpus.label_names
    training, wanted = session.training, session.config.metrics
    metrics = task_registry.find(session.config.model.task).metrics
    needs_scores = any(each.needs_scores and each.name in wanted for each in metrics)
    gathered = GatheredScores() if limit is None and (gathers or needs_scores) else None
    total = None
    for rows, batch, counts in _batches(session, limit):
        model = session.model if gathered is None else OneForward(session.model)
        with autocast(number_format, world.device):
            sums = training.sums(model, batch, counts, names)
            if gathered is not None:
                gathered.add(rows, training.row_values(model, batch))
        total = sums if total is None else total + sums
    assert total is not None
    values = training.metrics(np.array(world.sum_numbers(total.tolist())), names)
    if gathered is None:
        return values, None
    scores = gathered.of_all(world, len(session.corpus.eval))
    if needs_scores:
        values |= training.score_metrics(scores, session.corpus.eval.labels, names)
    return values, scores


def _wanted(session: Session, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that the job names, in its order, and the loss."""
    names = session.config.metrics
    return {**{name: values[name] for name in names if name in values}, "loss": values["loss"]}


def _generated(session: Session, number_format: Precision, limit: int | None) -> dict[str, float]:
    """Returns the job's metrics of generated text.

    With a `limit` there are only those whose time grows with the rows: a few rows show it.
    """
    config, training = session.config, session.training
    metrics = task_registry.find(config.model.task).metrics
    wanted = (each for each in metrics if each.is_generated and each.name in config.metrics)
    names = [each.name for each in wanted if each.compares_rows or limit is None]
    if not names:
        return {}
    generator = SessionGenerator(
        session, number_format, _order(session, limit), is_complete=limit is None
    )
    return training.generated(config.data, session.corpus.tokenizer, generator, names)


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
    order = _order(session, limit)
    rounds = math.ceil(len(order) / (size * workers))
    padded = np.full(rounds * workers * size, FILLER)
    padded[: len(order)] = order
    return padded.reshape(rounds, workers, size)


def _order(session: Session, limit: int | None) -> Indices:
    """Returns all rows, or `limit` of them, the longest first."""
    order: Indices = np.argsort(-session.corpus.eval.lengths, kind="stable")
    if limit is not None and limit < len(order):
        return order[np.linspace(0, len(order) - 1, limit).astype(np.int64)]
    return order


def _width(batch: Indices, lengths: Indices) -> int:
    """Returns the longest row of a round in tokens; `batch` is (workers, rows)."""
    return int(batches.batch_lengths(batch, lengths).max())


def _batches(session: Session, limit: int | None) -> Iterator[tuple[Indices, Batch, torch.Tensor]]:
    """Yields this worker's rows, their batch, and the weight of each row, (rows,).

    Filler rows have the index FILLER and the weight 0.

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
        yield own, {name: tensor.to(world.device) for name, tensor in gathered.items()}, counts


def _uncompiled(config: TrainingConfig) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which compiled layers run eagerly instead of compiling again."""
    if not config.compile:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
