"""A trained parameter, told apart from what the forward pass uses in its place."""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Weight:
    """A trained parameter: what the optimizer holds and what the forward pass uses."""

    name: str
    target: torch.Tensor
    """fp32, plain: the parameter itself, the original of a 16-bit copy, or this worker's shard."""
    source: torch.nn.Parameter
    """Where the gradient arrives."""

    @property
    def is_copied(self) -> bool:
        """Whether the forward pass uses a 16-bit copy, which follows every update."""
        return self.source.dtype != self.target.dtype

    def gradient(self) -> torch.Tensor | None:
        """The gradient as a plain tensor, of this worker's shard where weights are sharded."""
        found = self.source.grad
        return found.to_local() if isinstance(found, DTensor) else found
