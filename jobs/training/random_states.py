"""The random states of this process and of its device, from which training draws."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

States = dict[str, torch.Tensor]


def read(device: torch.device) -> States:
    """Returns the random state under `cpu`, and under `cuda` if the device is a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def write(states: States, device: torch.device) -> None:
    """Sets the random states; keeps the GPU's state if `states` has none."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def of_host() -> Any:
    """Returns the random states of torch, NumPy and Python on the host, which can be compared."""
    numbers: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), numbers[1].tolist(), numbers[2], random.getstate()


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Restores the random states after the context."""
    states = read(device)
    try:
        yield
    finally:
        write(states, device)


@contextlib.contextmanager
def drawn(modules: Iterable[torch.nn.Module], device: torch.device) -> Iterator[list[str]]:
    """Gives a list that gets the name of the class of a module that draws random numbers.

    It is empty after the context if no module has changed a random state in it.
    """
    before, found = list[States](), list[str]()

    def begin(module: torch.nn.Module, inputs: Any) -> None:
        before.append(read(device))

    def end(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        states = before.pop()
        if any(not torch.equal(state, states[name]) for name, state in read(device).items()):
            found.append(type(module).__name__)

    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(begin).remove)
            hooks.callback(module.register_forward_hook(end).remove)
        yield found
