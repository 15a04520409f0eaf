"""Loads batches: gathers them on the device, or assembles them ahead in pinned host memory."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from jobs.training.data.tokens import TokenStore
from jobs.training.engine.batch_plan import BatchPlan

Batch = dict[str, torch.Tensor]
Batches = list[tuple[Batch, torch.Tensor]]
"""The batch of each pass with the weights of its rows, (micro_batch,)."""


class DeviceLoader:
    """Returns the batch of each pass of the current step.

    Rows on the device are gathered there, also inside a captured step. Rows in host memory are
    gathered by a thread, one step ahead, and copied asynchronously.
    """

    def __init__(self, store: TokenStore, plan: BatchPlan, device: torch.device) -> None:
        self.on_device = store.place.type == device.type
        self.waited_s = 0.0
        """Total time that steps waited for rows from host memory."""
        self._store = store
        self._plan = plan
        self._device = device
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future[Batches]] | None = None

    def batches(self, width: int) -> Batches:
        """Returns the batches of the current step on the device, padded to `width`."""
        if self.on_device:
            rows, weights = self._plan.current()
            return [
                (self._store.gather(rows[number], width), weights[number])
                for number in range(len(rows))
            ]
        step = self._plan.host_step
        begin = time.perf_counter()
        made = self._ahead(step, width)
        self.waited_s += time.perf_counter() - begin
        if self._plan.is_loaded(step + 1):
            following = self._plan.width(step + 1)
            future = self._thread.submit(self._assemble, step + 1, following)
            self._next = (step + 1, following), future
        return [
            (
                {
                    name: tensor.to(self._device, non_blocking=True)
                    for name, tensor in batch.items()
                },
                weights.to(self._device, non_blocking=True),
            )
            for batch, weights in made
        ]

    def next_batch(self, width: int) -> tuple[Batch, torch.Tensor]:
        """Returns the batch of the current step's next pass; rows must be on the device."""
        rows, weights = self._plan.next_pass()
        return self._store.gather(rows, width), weights

    def _ahead(self, step: int, width: int) -> Batches:
        pending, self._next = self._next, None
        if pending is not None and pending[0] == (step, width):
            return pending[1].result()
        return self._assemble(step, width)

    def _assemble(self, step: int, width: int) -> Batches:
        rows, weights = self._plan.on_host(step)
        made = []
        for number in range(len(rows)):
            batch = self._store.gather(rows[number], width)
            if self._device.type == "cuda":
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            made.append((batch, weights[number]))
        return made
