"""The random states of this process and of its device, from which training draws."""

import contextlib
from collections.abc import Iterator

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


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Restores the random states after the context."""
    states = read(device)
    try:
        yield
    finally:
        write(states, device)
