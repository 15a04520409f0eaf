"""The group of training processes that torchrun or Ray Train started."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jobs.training.config import Device

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
"""Timeout of collective operations; a longer one means that a worker was lost."""


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process in the group, with collective operations."""

    rank: int
    size: int
    device: torch.device
    control: Any = None
    """Process group over the CPUs, whose operations do not wait for the GPU."""

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which reports and writes."""
        return self.rank == 0

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """Returns the sum of each number over all processes."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed, group=self.control)
        return list(summed.tolist())

    def broadcast(self, *, value: float) -> float:
        """Returns the main process's value in every process."""
        return self.sum_numbers([value if self.is_main else 0.0])[0]

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def all_reduce_max(self, value: float) -> float:
        """Returns the largest value over all processes."""
        return float(max(self.gather(value)))


@contextlib.contextmanager
def join(device: Device) -> Iterator[World]:
    """Joins the process group, and creates it from torchrun's environment if none exists."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    is_ours = size > 1 and not dist.is_initialized()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if is_ours:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    joined = dist.is_initialized()
    place = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else device
    try:
        yield World(
            rank=dist.get_rank() if joined else 0,
            size=dist.get_world_size() if joined else 1,
            device=torch.device(place),
            control=_control(device) if joined else None,
        )
    finally:
        if is_ours:
            dist.destroy_process_group()


def _control(device: Device) -> Any:
    if device == "cpu" and dist.get_backend() == "gloo":
        return dist.group.WORLD
    return dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
