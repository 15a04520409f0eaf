"""Losses of vectors: in-batch negatives over all workers, and the error of cosines."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Vectors = torch.Tensor
"""Of the texts of one role, (rows, n)."""


def in_batch_negatives(
    texts: Sequence[Vectors], weights: torch.Tensor, *, scale: float, dimensions: Sequence[int]
) -> torch.Tensor:
    """Returns the cross-entropy of finding each anchor's positive, summed over this worker's rows.

    The candidates are the positives and negatives of the rows of all workers. Summed over workers,
    value and gradient are those of one worker with all rows.

    Args:
        texts: Vectors of anchors, positives, and perhaps negatives.
        weights: 1 for rows and 0 for filler rows, (rows,).
        scale: Factor of the cosines.
        dimensions: Leading numbers of the vectors of which the loss is summed too.

    Source: Henderson et al., 2017, "Efficient natural language response suggestion for Smart
    Reply"; Kusupati et al., 2022, "Matryoshka representation learning" (`dimensions`).
    """
    anchors, others = texts[0], torch.stack(list(texts[1:]))
    rows, width = anchors.shape
    candidates = all_gather(others)  # (workers, roles, rows, width)
    is_real = all_gather(weights.detach()) > 0
    workers, roles = candidates.shape[:2]
    candidates = candidates.transpose(0, 1).reshape(-1, width)
    is_real = is_real.reshape(-1).repeat(roles)
    first = rows * _rank()
    own = torch.arange(first, first + rows, device=anchors.device)
    is_own = torch.arange(workers * rows * roles, device=anchors.device) == own[:, None]
    total = anchors.new_zeros(())
    for size in (width, *dimensions):
        logits = scale * cosines(anchors[:, :size], candidates[:, :size])
        # a filler row is no negative; it keeps its own positive, so that its loss is finite
        logits = logits.masked_fill(~(is_real | is_own), float("-inf"))
        losses = torch.nn.functional.cross_entropy(logits, own, reduction="none")
        total = total + (losses * weights).sum()
    return total


def cosine_errors(
    texts: Sequence[Vectors], targets: torch.Tensor, dimensions: Sequence[int]
) -> torch.Tensor:
    """Returns the squared error of each row's cosine, (rows,), summed over `dimensions` too.

    `targets`, (rows,), are from -1 to 1.
    """
    one, other = texts
    return torch.stack(
        [
            (torch.cosine_similarity(one[:, :size], other[:, :size]) - targets) ** 2
            for size in (one.shape[1], *dimensions)
        ]
    ).sum(dim=0)


def cosines(one: Vectors, other: Vectors) -> torch.Tensor:
    """Returns the cosine of each vector of `one` with each of `other`, (rows, others)."""
    normalize = torch.nn.functional.normalize
    return normalize(one, dim=-1) @ normalize(other, dim=-1).T


def all_gather(values: torch.Tensor) -> torch.Tensor:
    """Returns the values of all workers, (workers, ...), in the order of ranks.

    The gradient of a worker's values is the sum of those that all workers have for them.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values[None]
    found: torch.Tensor = _AllGather.apply(values)  # type: ignore[no-untyped-call]
    return found


class _AllGather(torch.autograd.Function):
    """Gathers a tensor of each worker, and sums the gradients of all workers in return."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        """Returns the values of all workers, (workers, ...)."""
        found = values.new_empty((dist.get_world_size(), *values.shape))
        dist.all_gather_into_tensor(found.flatten(0, 1), values.contiguous().flatten(0, 0))
        return found

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the gradients of this worker's values."""
        (gradient,) = gradients
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        return summed[_rank()]


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
