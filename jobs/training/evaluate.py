"""Judging the model on the evaluation rows, each counted once, by all workers together."""

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import torch

from jobs.spec.train import Precision
from jobs.training import random_states
from jobs.training.config import EVAL_BATCH, TrainingConfig
from jobs.training.data import batches, encoding, language
from jobs.training.data.batches import FILLER, Indices
from jobs.training.engine.objective import Batch, classify, predict_tokens
from jobs.training.metrics import classification
from jobs.training.metrics import language as answers
from jobs.training.model import parallel
from jobs.training.model.precision import autocast
from jobs.training.session import Session
from jobs.training.world import World

ANSWERS, ANSWER_TOKENS = 32, 64
"""Prompts that are answered to judge diversity, and how long the answers may get."""


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
    judge = _language if session.config.model.task == "causal-lm" else _classification
    session.update.settle()
    session.model.eval()
    try:
        with _uncompiled(session.config), random_states.kept(session.world.device):
            return judge(session, number_format, limit)
    finally:
        session.model.train()


@torch.no_grad()
def sample_scores(session: Session, number_format: Precision) -> list[list[float]]:
    """Scores of the sampled evaluation rows: probabilities of classes, or the response's loss.

    Every worker scores all of them, because sharded weights are gathered by all together.
    """
    rows = torch.from_numpy(encoding.sample(len(session.corpus.eval)))
    lengths = session.corpus.eval.lengths
    session.update.settle()
    session.model.eval()
    found: list[list[float]] = []
    try:
        with _uncompiled(session.config), random_states.kept(session.world.device):
            for part in torch.split(rows, EVAL_BATCH[session.config.model.task]):
                gathered = session.eval_store.gather(
                    part.to(session.eval_store.place), int(lengths[part.numpy()].max())
                )
                batch = {name: each.to(session.world.device) for name, each in gathered.items()}
                with autocast(number_format, session.world.device):
                    found += _scores(session, batch)
    finally:
        session.model.train()
    return found


def _scores(session: Session, batch: Batch) -> list[list[float]]:
    if session.config.model.task == "causal-lm":
        losses, mask, _ = predict_tokens(session.model, batch)
        means = (losses * mask).sum(dim=1) / mask.sum(dim=1)
        return [[mean] for mean in means.tolist()]
    probabilities: list[list[float]] = classify(session.model, batch).softmax(dim=-1).tolist()
    return probabilities


def _classification(
    session: Session, number_format: Precision, limit: int | None
) -> dict[str, float]:
    world, classes = session.world, len(session.corpus.label_names)
    confusion = torch.zeros(classes * classes, dtype=torch.float64, device=world.device)
    loss = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch, counts in _batches(session, limit):
        with autocast(number_format, world.device):
            logits = classify(session.model, batch)
        labels = batch["labels"]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss += (losses * counts).sum()
        cells = labels * classes + logits.argmax(dim=-1)
        confusion.index_add_(0, cells, counts.double())
    sums = world.sum_numbers([float(loss), *confusion.tolist()])
    table = np.rint(sums[1:]).astype(np.int64).reshape(classes, classes)
    scores = classification.compute(table, session.config.metrics)
    return {**scores, "loss": sums[0] / max(1, int(table.sum()))}


def _language(session: Session, number_format: Precision, limit: int | None) -> dict[str, float]:
    world = session.world
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    for batch, counts in _batches(session, limit):
        with autocast(number_format, world.device):
            losses, mask, right = predict_tokens(session.model, batch)
        mask = mask * counts[:, None]
        sums += torch.stack([(losses * mask).sum(), (right * mask).sum(), mask.sum()]).double()
    loss, right_tokens, tokens = world.sum_numbers(sums.tolist())
    mean = loss / max(1.0, tokens)
    scores = {
        "token_accuracy": right_tokens / max(1.0, tokens),
        "perplexity": math.exp(min(mean, 700)),
    }
    wanted = session.config.metrics
    if any(name in answers.OF_ANSWERS for name in wanted) and limit is None:
        scores |= answers.diversity(_answers(session, number_format))
    return {**{name: scores[name] for name in wanted if name in scores}, "loss": mean}


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
    size, workers = EVAL_BATCH[session.config.model.task], session.world.size
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


def _answers(session: Session, number_format: Precision) -> list[list[int]]:
    """Sampled answers to the first prompts, the same ones at every evaluation of equal weights."""
    world, config, tokenizer = session.world, session.config, session.corpus.tokenizer
    asked = language.prompts(config.data.eval, config.data, tokenizer, ANSWERS)
    torch.manual_seed(config.seed)
    together = parallel.is_sharded(config, world)  # then every worker takes part in every answer
    found = []
    for prompt in asked if together else asked[world.rank :: world.size]:
        ids = torch.tensor([prompt[-config.data.max_length :]], device=world.device)
        with autocast(number_format, world.device):
            answer = session.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=ANSWER_TOKENS,
                do_sample=True,
                pad_token_id=session.corpus.eval.pad_token_id,
                synced_gpus=together,
            )
        found.append(answer[0, ids.shape[1] :].tolist())
    return found if together else [answer for part in world.gather(found) for answer in part]


def _uncompiled(config: TrainingConfig) -> contextlib.AbstractContextManager[object]:
    """Layers compiled for training are not compiled again for judging."""
    if not config.compile:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
