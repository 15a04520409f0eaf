"""A trained parameter in fp32, and the parameter that the forward pass uses in its place."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Weight:
    """A trained parameter, as the optimizer and as the forward pass hold it."""

    name: str
    target: torch.Tensor
    """The optimizer's plain tensor, usually fp32: the parameter itself, the original of a 16-bit
    copy, or this worker's shard."""
    source: torch.nn.Parameter
    """The parameter of the forward pass, on which autograd accumulates the gradient."""
    rate: float = 1.0
    """Its learning rate as a multiple of the schedule's."""
    is_in_layer: bool = False
    """Whether it belongs to one of the repeated layers, and is no embedding."""

    @property
    def is_copied(self) -> bool:
        """Whether the forward pass uses a 16-bit copy, which is refreshed after every update."""
        return self.source.dtype != self.target.dtype

    def gradient(self) -> torch.Tensor | None:
        """Returns the gradient as a plain tensor; for sharded weights, of this worker's shard."""
        found = self.source.grad
        return found.to_local() if isinstance(found, DTensor) else found


@torch.no_grad()
def copy_gradients(pairs: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    """Copies each pair's gradient, the second, into its first tensor, or zeros for a missing one.

    The types of the two tensors may differ.
    """
    found, without = [], []
    for place, gradient in pairs:
        if gradient is None:  # such as an expert without tokens: an earlier step's is there
            without.append(place)
        else:
            found.append((place, gradient))
    if found:
        torch._foreach_copy_([place for place, _ in found], [given for _, given in found])
    if without:
        torch._foreach_zero_(without)
