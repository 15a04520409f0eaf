"""What a process keeps from one training to the next: a session that can start over, or nothing.

A session that starts over keeps its model, its place on the device, what it has proven, and its
captured or compiled steps; it trains as a new one would, to the last bit.
"""

import dataclasses
import gc
import sys
from dataclasses import dataclass

import psutil
import torch

from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.events import BaseScored, Report, Tokenised
from jobs.training.model import parallel
from jobs.training.session import Session, build_session, first_model, reseed
from jobs.training.world import World

MEMORY_SHARE = 0.1
"""Largest share of the available host memory that first weights may take, all workers together."""

First = torch.Tensor | None
"""The content of a tensor before the first step, in host memory; None for zeros."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A session before its first step."""

    session: Session
    buffers: list[torch.Tensor]
    """Those of the model, and of its copy in 16 bits; a model may put others in their place."""
    numbers: list[First]
    """Of `_changed`, in its order."""
    states: list[dict[str, First]]
    """The optimizer's tensors before the first step, for each trained weight."""


class Kept:
    """The session that a process keeps; its process group has to outlive it."""

    def __init__(self) -> None:
        self._beginning: _Beginning | None = None

    def keep(self, session: Session) -> None:
        """Keep a session that has run no step; all workers must call this.

        It is not kept if the model is sharded, or if its weights are too large to be kept twice.
        """
        if parallel.is_sharded(session.config, session.world):
            return
        size = sum(weight.target.nbytes for weight in session.update.weights)
        limit = MEMORY_SHARE * psutil.virtual_memory().available
        if not all(session.world.gather(size * session.world.size <= limit)):
            return
        buffers = _buffers(session)
        numbers = [_first(each) for each in (*_changed(session), *buffers)]
        states = (session.update.state(weight) for weight in session.update.weights)
        firsts = [{name: _first(each) for name, each in state.items()} for state in states]
        self._beginning = _Beginning(session, buffers, numbers, firsts)

    def drop(self) -> None:
        """Forget the session, so that its memory can be used."""
        self._beginning = None

    def restarted(self, config: TrainingConfig, world: World) -> Session | None:
        """Returns the session, set back to before its first step, for another configuration.

        Returns None if there is none, if more than the learning rate, its schedule, the weight
        decay or the seed differs, or if the model has put other buffers in the place of its first
        ones, as some do for rows that are longer than all before. Another seed needs a new session
        for adapters and for losses that compare with the base. All workers must call this.
        """
        beginning = self._beginning
        if not all(world.gather(beginning is not None and _can_take(beginning, config, world))):
            return None
        assert beginning
        session = beginning.session
        if config.seed != session.config.seed:
            beginning = _drawn_again(beginning, config)
        _set_back(beginning)
        session.update.use(config.optimizer)
        session.update.refresh_copies()
        session.batch_plan.use(config)
        session.engine.restart()
        reseed(config.seed, session.world)
        session = dataclasses.replace(session, config=config)
        self._beginning = dataclasses.replace(beginning, session=session)
        return session


def begun(
    config: TrainingConfig,
    world: World,
    report: Report,
    kept: Kept | None,
    revision: str | None = None,
) -> Session:
    """Returns the kept session, started over, or builds a new one and keeps it.

    `revision` is that of `build_session`. All workers must call this. Raises what `load_corpus` and
    `build_session` raise.
    """
    if kept and not revision and (found := kept.restarted(config, world)):
        return found
    if kept:
        kept.drop()
        free_memory(world.device)
    corpus = load_corpus(config, lambda *done: report(Tokenised(*done)))
    session = build_session(
        config,
        corpus,
        world,
        progress=lambda *done: report(BaseScored(*done)),
        revision=revision,
    )
    if kept:
        kept.keep(session)
    return session


def free_memory(device: torch.device) -> None:
    """Frees the memory of what this process trained before, and resets the peak.

    What was compiled is forgotten too, so that the next model is compiled as in a fresh process.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream that was captured on
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _can_take(beginning: _Beginning, config: TrainingConfig, world: World) -> bool:
    """Returns whether a session can take a configuration without being built anew."""
    session, wanted = beginning.session, config.optimizer
    own = session.config
    numbers = {"lr": wanted.lr, "weight_decay": wanted.weight_decay}
    taken = dataclasses.replace(
        own,
        optimizer=own.optimizer.model_copy(update=numbers),
        lr_schedule=config.lr_schedule,
        seed=config.seed,
    )
    if TRAINING_CONFIG.dump_json(taken) != TRAINING_CONFIG.dump_json(config):
        return False
    if config.seed != own.seed and not _can_draw(session):
        return False
    if wanted.head_lr is not None and wanted.lr != own.optimizer.lr:
        return False  # rates of weights are multiples of `lr`
    is_read = session.update.reads_decay or bool(session.engine.eager_reason)
    if not is_read and wanted.weight_decay != own.optimizer.weight_decay:
        return False
    places = [(each.rank, each.size, each.device) for each in (session.world, world)]
    present = _buffers(session)
    are_first = [a is b for a, b in zip(beginning.buffers, present, strict=False)]
    return places[0] == places[1] and len(are_first) == len(present) and all(are_first)


def _can_draw(session: Session) -> bool:
    """Returns whether the weights of a seed can be put in the place of those of another.

    That reads the base again, which is large where an adapter is trained; and what the base says of
    the rows was computed with the first seed's weights.
    """
    if session.config.model.adapter or session.training.has_references:
        return False
    return all(
        weight.requires_grad or name.rpartition(".")[0] not in session.drawn
        for name, weight in session.model.named_parameters()
    )


def _drawn_again(beginning: _Beginning, config: TrainingConfig) -> _Beginning:
    """Returns the beginning with the first weights of another seed."""
    session = beginning.session
    if not session.drawn:
        return beginning
    drawn = dict(first_model(config, session.corpus, session.world).named_parameters())
    numbers = list(beginning.numbers)  # those of weights come first
    for place, weight in enumerate(session.update.weights):
        if weight.name.rpartition(".")[0] in session.drawn:
            numbers[place] = _first(drawn[weight.name])
    return dataclasses.replace(beginning, numbers=numbers)


@torch.no_grad()
def _set_back(beginning: _Beginning) -> None:
    session = beginning.session
    tensors = (*_changed(session), *beginning.buffers)
    for tensor, first in zip(tensors, beginning.numbers, strict=True):
        _set(tensor, first)
    for weight, firsts in zip(session.update.weights, beginning.states, strict=True):
        for name, tensor in session.update.state(weight).items():
            _set(tensor, firsts[name])


def _buffers(session: Session) -> list[torch.Tensor]:
    """Returns the buffers of the model that is saved and of the one that is trained."""
    models = (session.model, session.engine.step.model)
    return [buffer for model in models for buffer in model.buffers()]


def _changed(session: Session) -> list[torch.Tensor]:
    """Returns what training changes besides buffers and the optimizer's state."""
    update = session.update
    weights = [weight.target.detach() for weight in update.weights]
    return [*weights, update.loss_scale, update.good_steps, update.halted]


def _first(tensor: torch.Tensor) -> First:
    return tensor.detach().to("cpu", copy=True) if bool(tensor.any()) else None


def _set(tensor: torch.Tensor, first: First) -> None:
    if first is None:
        tensor.zero_()
    else:
        tensor.copy_(first)
