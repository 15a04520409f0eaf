"""How batches reach the step: gathered on the device, or assembled ahead in pinned host memory."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from jobs.training.data.tokens import TokenStore
from jobs.training.engine.batch_plan import BatchPlan

Batch = dict[str, torch.Tensor]
Batches = list[tuple[Batch, torch.Tensor]]
"""Each pass's batch and its rows' weights."""


class DeviceLoader:
    """Gives each pass of the current step its batch.

    Rows that live on the device are gathered there, inside a captured step too. Rows in host memory
    are gathered by a thread, one step ahead, and copied without waiting.
    """

    def __init__(self, store: TokenStore, schedule: BatchPlan, device: torch.device) -> None:
        self.on_device = store.place.type == device.type
        self.waited_s = 0.0
        """How long steps waited for rows from host memory."""
        self._store = store
        self._schedule = schedule
        self._device = device
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future[Batches]] | None = None

    def batches(self, width: int) -> Batches:
        """The current step's batches, padded to `width`, on the device."""
        if self.on_device:
            rows, weights = self._schedule.current()
            return [
                (self._store.gather(rows[number], width), weights[number])
                for number in range(len(rows))
            ]
        step = self._schedule.host_step
        begin = time.perf_counter()
        made = self._ahead(step, width)
        self.waited_s += time.perf_counter() - begin
        if self._schedule.is_loaded(step + 1):
            following = self._schedule.width(step + 1)
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
        """The batch of the current step's next pass, where rows live on the device."""
        rows, weights = self._schedule.next_pass()
        return self._store.gather(rows, width), weights

    def _ahead(self, step: int, width: int) -> Batches:
        pending, self._next = self._next, None
        if pending is not None and pending[0] == (step, width):
            return pending[1].result()
        return self._assemble(step, width)

    def _assemble(self, step: int, width: int) -> Batches:
        rows, weights = self._schedule.on_host(step)
        made = []
        for number in range(len(rows)):
            batch = self._store.gather(rows[number], width)
            if self._device.type == "cuda":
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            made.append((batch, weights[number]))
        return made
