"""What a process keeps from one training to the next: a session that can start over, or nothing.

A session that starts over keeps its model, its place on the device, what it has proven, and its
captured or compiled steps; it trains as a new one would, to the last bit.
"""

import dataclasses
import gc
import sys
from dataclasses import dataclass, field

import torch

from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.model import parallel
from jobs.training.session import Session, reseed

First = torch.Tensor | None
"""The content of a tensor before the first step, in host memory; None for zeros."""


@dataclass(slots=True)
class Kept:
    """The session that a process keeps; its process group has to outlive it."""

    _session: Session | None = None
    _numbers: list[First] = field(default_factory=list)
    """Of the trained weights, the model's buffers, and the loss scale."""
    _states: list[dict[str, First]] = field(default_factory=list)
    """Of the optimizer, for each trained weight."""

    def keep(self, session: Session) -> None:
        """Keep a session that has run no step; sharded models are not kept."""
        if parallel.is_sharded(session.config, session.world):
            return
        self._session = session
        self._numbers = [_first(each) for each in _tensors(session)]
        states = (session.update.state(weight) for weight in session.update.weights)
        self._states = [{name: _first(each) for name, each in state.items()} for state in states]

    def drop(self) -> None:
        """Forget the session, so that its memory can be used."""
        self._session, self._numbers, self._states = None, [], []

    def restarted(self, config: TrainingConfig) -> Session | None:
        """Returns the session, set back to before its first step, for another configuration.

        Only the learning rate, its schedule and the weight decay may differ; else it returns None.
        """
        session = self._session
        if session is None or not _differs_in_numbers(session, config):
            return None
        update = session.update
        with torch.no_grad():
            for tensor, first in zip(_tensors(session), self._numbers, strict=True):
                _set(tensor, first)
            for weight, firsts in zip(update.weights, self._states, strict=True):
                for name, tensor in update.state(weight).items():
                    _set(tensor, firsts[name])
        update.use(config.optimizer)
        update.refresh_copies()
        session.batch_plan.use(config)
        session.engine.restart()
        reseed(config.seed, session.world)
        self._session = dataclasses.replace(session, config=config)
        return self._session


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


def _differs_in_numbers(session: Session, config: TrainingConfig) -> bool:
    """Returns whether a session can take a configuration without being built anew."""
    own, wanted = session.config, config.optimizer
    numbers = {"lr": wanted.lr, "weight_decay": wanted.weight_decay}
    taken = dataclasses.replace(
        own,
        optimizer=own.optimizer.model_copy(update=numbers),
        lr_schedule=config.lr_schedule,
    )
    if TRAINING_CONFIG.dump_json(taken) != TRAINING_CONFIG.dump_json(config):
        return False
    if wanted.head_lr is not None and wanted.lr != own.optimizer.lr:
        return False  # rates of weights are multiples of `lr`
    is_read = session.update.reads_decay or bool(session.engine.eager_reason)
    return is_read or wanted.weight_decay == own.optimizer.weight_decay


def _tensors(session: Session) -> list[torch.Tensor]:
    """Returns what training changes besides the optimizer's state, in a fixed order."""
    update = session.update
    weights = [weight.target.detach() for weight in update.weights]
    return [*weights, *session.model.buffers(), update.loss_scale, update.good_steps, update.halted]


def _first(tensor: torch.Tensor) -> First:
    return tensor.detach().to("cpu", copy=True) if bool(tensor.any()) else None


def _set(tensor: torch.Tensor, first: First) -> None:
    if first is None:
        tensor.zero_()
    else:
        tensor.copy_(first)
