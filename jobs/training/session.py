"""Everything a training process holds, built once, and one optimizer step over it."""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from jobs.errors import DataError, TrainingError
from jobs.spec.train import Precision
from jobs.training import base_model, batches, data, learning_rate, metrics, precision
from jobs.training.config import TrainingConfig
from jobs.training.world import World

FINAL_PRECISION: Precision = "fp32"
"""The trained model is judged as it will be published, so that an endpoint scores the same."""
EVAL_BATCH = 64
"""Rows per forward pass when judging; scores do not depend on it beyond rounding."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised rows, and what saving a model needs to know about them."""

    train: data.EncodedRows
    eval: data.EncodedRows
    label_names: tuple[str, ...]
    tokenizer: Any


@dataclass(frozen=True, slots=True)
class Session:
    """The parts of one training process."""

    config: TrainingConfig
    world: World
    corpus: Corpus
    model: Any
    """The bare model, whose weights are saved."""
    wrapped: Any
    """The model as it is called: with gradient sync where there are several workers."""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    total_steps: int


def load_corpus(config: TrainingConfig) -> Corpus:
    """Read and tokenise both splits."""
    spec = config.data
    train, held_back = data.load_rows(spec.train, spec), data.load_rows(spec.eval, spec)
    names = train.label_names
    if len(names) < 2:
        raise DataError(f"{spec.train.path} has only the label {names[0]!r}; two are needed")
    tokenizer = base_model.load_tokenizer(config.model.base)
    encoded = [
        data.encode(rows, tokenizer, max_length=spec.max_length, label_names=names)
        for rows in (train, held_back)
    ]
    return Corpus(encoded[0], encoded[1], names, tokenizer)


def build_session(config: TrainingConfig, corpus: Corpus, world: World) -> Session:
    """Build model and optimizer; the same seed gives the same weights in every process."""
    torch.manual_seed(config.seed)
    precision.set_matmul_precision(config.precision)
    model = base_model.load_classifier(config.model, corpus.label_names).to(world.device)
    model.train()
    wrapped: Any = model
    if world.size > 1:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    # each rank drops other units, or two workers would waste half of the noise
    torch.manual_seed(config.seed + 1 + world.rank)
    steps = batches.total_steps(len(corpus.train), config.global_batch_size, config.epochs)
    return Session(
        config=config,
        world=world,
        corpus=corpus,
        model=model,
        wrapped=wrapped,
        optimizer=build_optimizer(model, config),
        scaler=precision.gradient_scaler(config.precision, world.device),
        total_steps=steps,
    )


def build_optimizer(model: torch.nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW with decay on matrices alone; biases and normalisation weights are vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for p in parameters if p.dim() > 1],
            "weight_decay": config.optimizer.weight_decay,
        },
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.optimizer.lr, fused=True)


def train_step(session: Session, step: int) -> float:
    """Do 0-based optimizer step `step` and return the mean loss over its global batch.

    Raises TrainingError before any weight changes when the loss is not finite.
    """
    config, world = session.config, session.world
    indices = batches.global_batch(
        len(session.corpus.train), config.global_batch_size, config.seed, step
    )
    passes = list(
        batches.micro_batches(
            indices,
            rank=world.rank,
            world_size=world.size,
            micro_batch_size=config.micro_batch_size,
            global_batch_size=config.global_batch_size,
        )
    )
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for number, micro in enumerate(passes):
        with _sync_gradients(session, is_last=number == len(passes) - 1):
            loss = forward_loss(session, micro) / len(indices)
            total += loss.detach()
            # DDP averages gradients over workers; the mean over samples wants their sum
            torch.autograd.backward(session.scaler.scale(loss * world.size))
    mean_loss = float(world.sum(total).item())
    if not math.isfinite(mean_loss):
        rows = ", ".join(str(index) for index in indices[:8])
        raise TrainingError(
            f"the loss of step {step + 1} is {mean_loss}; its training rows start with {rows}"
            " (0-based); lower train.optimizer.lr or look at these rows"
        )
    apply_gradients(session, step)
    return mean_loss


def forward_loss(session: Session, micro: batches.MicroBatch) -> torch.Tensor:
    """Summed cross-entropy of one forward pass, filler rows excluded."""
    device = session.world.device
    inputs = session.corpus.train.batch(micro.indices, device)
    labels = inputs.pop("labels")
    with precision.autocast(session.config.precision, device):
        logits = session.wrapped(**inputs).logits
    losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return (losses * torch.from_numpy(micro.weights).to(device)).sum()


def apply_gradients(session: Session, step: int) -> None:
    """Clip, set the learning rate of this step, update the weights, drop the gradients."""
    config = session.config
    rate = learning_rate.rate_at(step, session.total_steps, config.optimizer.lr, config.lr_schedule)
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    session.scaler.unscale_(session.optimizer)
    torch.nn.utils.clip_grad_norm_(session.model.parameters(), config.optimizer.max_grad_norm)
    session.scaler.step(session.optimizer)
    session.scaler.update()
    session.optimizer.zero_grad(set_to_none=True)


@torch.inference_mode()
def evaluate(
    session: Session, number_format: Precision, *, limit: int | None = None
) -> dict[str, float]:
    """Judge the model on the evaluation rows, or the first `limit`, each counted once."""
    world, rows, classes = session.world, session.corpus.eval, len(session.corpus.label_names)
    confusion = torch.zeros(classes * classes, dtype=torch.float64, device=world.device)
    loss = torch.zeros(1, dtype=torch.float64, device=world.device)
    session.model.eval()
    own = rows.shortest_first(min(limit or len(rows), len(rows)))[world.rank :: world.size]
    for start in range(0, len(own), EVAL_BATCH):
        inputs = rows.batch(own[start : start + EVAL_BATCH], world.device)
        labels = inputs.pop("labels")
        with precision.autocast(number_format, world.device):
            logits = session.model(**inputs).logits.float()
        loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        cells = labels * classes + logits.argmax(dim=-1)
        confusion += torch.bincount(cells, minlength=classes * classes)
    session.model.train()
    table = world.sum(confusion).cpu().numpy().astype(np.int64).reshape(classes, classes)
    mean_loss = float(world.sum(loss).item()) / max(1, int(table.sum()))
    return {**metrics.compute(table, session.config.eval.metrics), "loss": mean_loss}


def _sync_gradients(session: Session, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
    if is_last or session.world.size == 1:
        return contextlib.nullcontext()
    return session.wrapped.no_sync()  # type: ignore[no-any-return]
