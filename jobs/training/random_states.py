"""The random states that training draws from: this process's, and its device's."""

import contextlib
from collections.abc import Iterator

import torch

States = dict[str, torch.Tensor]


def read(device: torch.device) -> States:
    """`cpu`, and `cuda` where the device is a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def write(states: States, device: torch.device) -> None:
    """Go on from states that were read; a GPU's is left alone when there is none among them."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside, what follows draws as if nothing had been."""
    states = read(device)
    try:
        yield
    finally:
        write(states, device)
