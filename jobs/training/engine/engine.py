"""Running steps in blocks: launched ahead of the device, their losses read once they are done."""

import functools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from jobs.errors import TrainingError
from jobs.training import random_states
from jobs.training.engine.capture import CapturedSteps, Run, refusal
from jobs.training.engine.step import LOSSES_KEPT, TrainStep
from jobs.training.events import Stepped

BLOCK_S = 0.25
"""How long a block of steps shall take: after each, progress is told and clocks are looked at."""
MAX_BLOCK = 64
"""Most steps of a block; two of them must fit into LOSSES_KEPT."""
SYNC_TIMING_S = 0.3
"""How long steps are timed to see what gradient sync costs."""
SETTLING_STEPS = 2
"""Steps after which DDP keeps its buckets."""
ROWS_NAMED = 8
"""Rows of a bad batch that its error names."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Flight:
    """A block that was launched: a mark before it and after each step, and its losses' copy."""

    first: int
    marks: list["_Mark"]
    losses: torch.Tensor
    copied: "_Mark"


class Engine:
    """Drives a TrainStep, captured where that is possible; `eager_reason` says why it is not."""

    def __init__(self, step: TrainStep) -> None:
        self.step = step
        self.block = 1
        self.eager_reason = refusal(step.config, step.world, on_device=step.feed.on_device)
        self._launched = 0
        self._flights: deque[_Flight] = deque()
        step.schedule.seek(0)
        begin = time.monotonic()
        self._run: Run = self._capture() if not self.eager_reason else step.run
        if self.eager_reason and step.world.size > 1:
            # DDP settles its buckets, and so the order of sums, after its first steps: before the
            # first real one, so that a resumed run adds up in the order of an uninterrupted one
            self._dry(self._settle)
        self.capture_s = time.monotonic() - begin

    @property
    def mode(self) -> str:
        """`captured`, or `eager: ` and why."""
        return f"eager: {self.eager_reason}" if self.eager_reason else "captured"

    def seek(self, step: int) -> None:
        """Make 0-based `step` the next one."""
        self.step.schedule.seek(step)

    def launch(self, first: int, last: int) -> None:
        """Start the 0-based steps `first` to `last` - 1, all of one epoch."""
        device = self.step.world.device
        marks = [_Mark(device)]
        for number in range(first, last):
            self._run(self.step.schedule.width(number))
            marks.append(_Mark(device))
        losses = self._copy_losses(last - first)
        self._flights.append(_Flight(first, marks, losses, _Mark(device)))

    def collect(self, *, ahead: int = 0) -> list[Stepped]:
        """Results of launched blocks, all but the newest `ahead`; waits for those.

        Every worker must collect the same blocks. Raises TrainingError for a loss that is not
        finite; that step changed no weight, and none after it did but in fp16.
        """
        results: list[Stepped] = []
        while len(self._flights) > ahead:
            results += self._land(self._flights.popleft())
        return results

    def communication_share(self, step_s: float) -> float | None:
        """Share of a step that gradient sync adds, from a few steps that change nothing.

        `step_s` is how long a step takes. None on CPUs, where steps are too slow for it.
        """
        if self.step.world.size == 1:
            return 0.0
        if self.step.world.device.type == "cpu":
            return None
        width = self.step.schedule.widths[0]
        steps = int(min(20, max(3, SYNC_TIMING_S / max(step_s, 1e-6))))

        def measure() -> float:
            alone: Run = functools.partial(self.step.run, sync=False)
            if not self.eager_reason:
                alone = CapturedSteps(self.step, [width], sync=False).run
            without, whole = (self._time(run, width, steps) for run in (alone, self._run))
            return max(0.0, 1 - without / whole)

        return self._dry(measure)

    def _settle(self) -> None:
        for _ in range(SETTLING_STEPS):
            self.step.run(self.step.schedule.widths[-1])

    def _capture(self) -> Run:
        try:
            return self._dry(lambda: CapturedSteps(self.step, self.step.schedule.widths)).run
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.eager_reason = f"capture failed: {str(error).splitlines()[0]}"
            return self.step.run

    def _dry(self, work: Callable[[], Value]) -> Value:
        """Work that runs steps and leaves no trace: not in weights, counters or random states."""
        step = self.step
        step.update.halted.fill_(1.0)
        try:
            with random_states.kept(step.world.device):
                return work()
        finally:
            step.update.halted.fill_(0.0)
            step.counter.fill_(self._launched)
            step.schedule.seek(0)

    def _time(self, run: Run, width: int, steps: int) -> float:
        marks = []
        for count in (3, steps):
            marks.append(_Mark(self.step.world.device))
            for _ in range(count):
                run(width)
        marks.append(_Mark(self.step.world.device))
        return marks[2].since(marks[1])

    def _copy_losses(self, count: int) -> torch.Tensor:
        slots = [slot % LOSSES_KEPT for slot in range(self._launched, self._launched + count)]
        self._launched += count
        kept = self.step.losses
        pieces = kept[slots[0] : slots[0] + count], kept[: max(0, slots[0] + count - LOSSES_KEPT)]
        on_gpu = kept.device.type == "cuda"
        host = torch.empty(count, dtype=torch.float32, pin_memory=on_gpu)
        return host.copy_(torch.cat(pieces), non_blocking=True)

    def _land(self, flight: _Flight) -> list[Stepped]:
        world, schedule = self.step.world, self.step.schedule
        flight.copied.wait()
        seconds = [b.since(a) for a, b in zip(flight.marks, flight.marks[1:], strict=False)]
        mine = sum(seconds) / len(seconds) if world.is_main else 0.0
        *losses, mean_s = world.sum_numbers([*flight.losses.tolist(), mine])
        self.block = max(1, min(MAX_BLOCK, int(BLOCK_S / max(mean_s, 1e-6))))
        results = []
        for number, (loss, spent) in enumerate(zip(losses, seconds, strict=True), flight.first):
            if not math.isfinite(loss):
                raise self._refuse(number, loss)
            samples, tokens, width = schedule.counts(number)
            padded = self.step.config.global_batch_size * width
            results.append(Stepped(number + 1, loss, samples, tokens, padded, spent))
        return results

    def _refuse(self, step: int, loss: float) -> TrainingError:
        rows = ", ".join(str(index) for index in self.step.schedule.rows(step)[:ROWS_NAMED])
        return TrainingError(
            f"the loss of step {step + 1} is {loss}; its training rows start with {rows}"
            " (0-based); lower train.optimizer.lr or look at these rows"
        )


class _Mark:
    """A moment on the device's own clock, or on the host's where there is no GPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = _event() if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Wait until the device is past this moment."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "_Mark") -> float:
        """Seconds from an earlier mark; both must be passed or are waited for."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self.wait()
        return float(earlier._event.elapsed_time(self._event)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
