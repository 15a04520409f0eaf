"""Launches blocks of steps ahead of the device, and reads their losses one block later."""

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
from jobs.training.engine.capture import CapturedSteps, Run, is_compiled, reason_for_eager
from jobs.training.engine.step import LOSSES_KEPT, TrainStep
from jobs.training.events import Stepped

BLOCK_S = 0.25
"""Intended duration of a block; after each block, progress is reported and clocks are checked."""
MAX_BLOCK = 64
"""Most steps of a block; two of them must fit into LOSSES_KEPT."""
SYNC_TIMING_S = 0.3
"""How long steps are timed to measure the cost of gradient synchronisation."""
SETTLING_STEPS = 2
"""Number of steps after which DDP no longer changes its buckets."""
ROWS_NAMED = 8
"""Most rows of a batch that an error names."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _LaunchedBlock:
    """A launched block of steps whose results were not read yet."""

    first: int
    """0-based number of the first step."""
    times: list["_Timestamp"]
    """Before the first step and after each step."""
    losses: torch.Tensor
    """(steps, 2) with losses and gradient norms, in host memory; valid after `copied`."""
    copied: "_Timestamp"


class Engine:
    """Runs a TrainStep, captured if possible; `eager_reason` says why it is not captured.

    Without `settles` the caller has to call `settle` before the first step.
    """

    def __init__(self, step: TrainStep, *, settles: bool = True) -> None:
        self.step = step
        self.block = 1
        self.eager_reason = reason_for_eager(
            step.config,
            step.world,
            on_device=step.loader.on_device,
            keeps_random_states=step.keeps_random_states,
        )
        self._launched = 0
        self._blocks: deque[_LaunchedBlock] = deque()
        step.batch_plan.seek(0)
        begin = time.monotonic()
        self._run: Run = self._capture() if not self.eager_reason else step.run
        if self.eager_reason and is_compiled(step.config, step.world):
            self._without_effect(self._compile)
        self.capture_s = time.monotonic() - begin
        self._unsettled = SETTLING_STEPS if self.eager_reason and step.world.size > 1 else 0
        if settles:
            self.settle()

    @property
    def mode(self) -> str:
        """`captured`, or `eager: ` with the reason."""
        return f"eager: {self.eager_reason}" if self.eager_reason else "captured"

    def settle(self, most: int = SETTLING_STEPS) -> float:
        """Runs DDP's first steps, or the next `most` of them, of the widest rows; returns seconds.

        DDP changes its buckets, and so the order of sums, after them. They run without effect, so
        that a resumed run adds in the order of an uninterrupted run.
        """
        begin, steps = time.monotonic(), min(most, self._unsettled)
        if steps:
            self._without_effect(functools.partial(self._settle_buckets, steps))
        self._unsettled -= steps
        spent_s = time.monotonic() - begin
        self.capture_s += spent_s
        return spent_s

    def restart(self) -> None:
        """Makes the first step the next one, in a block as short as a new engine's first.

        Steps that were launched and not collected, because training was stopped, are forgotten.
        """
        while self._blocks:
            self._blocks.popleft().copied.wait()
        self.block, self.step.loader.waited_s = 1, 0.0
        self.seek(0)

    def seek(self, step: int) -> None:
        """Makes the 0-based `step` the next step."""
        self.step.batch_plan.seek(step)

    def launch(self, first: int, last: int) -> None:
        """Launches the 0-based steps `first` to `last` - 1, which must be in one epoch."""
        device = self.step.world.device
        times = [_Timestamp(device)]
        for number in range(first, last):
            self._run(self.step.batch_plan.width(number))
            times.append(_Timestamp(device))
        losses = self._copy_losses(last - first)
        self._blocks.append(_LaunchedBlock(first, times, losses, _Timestamp(device)))

    def collect(self, *, ahead: int = 0) -> list[Stepped]:
        """Waits for all launched blocks but the newest `ahead`, and returns their results.

        Every worker must collect the same blocks.

        Raises:
            TrainingError: if a loss is not finite. That step changed no weight; in fp16 later steps
                may have, in other precisions they did not either.
        """
        results: list[Stepped] = []
        while len(self._blocks) > ahead:
            results += self._results(self._blocks.popleft())
        return results

    def communication_share(self, step_s: float) -> float | None:
        """Measures the share of a step that gradient synchronisation adds, with a few extra steps.

        The extra steps change no weight. `step_s` is the duration of a step. Returns None on CPUs,
        where steps are too slow to measure it.
        """
        if self.step.world.size == 1:
            return 0.0
        if self.step.world.device.type == "cpu":
            return None
        width = self.step.batch_plan.widths[0]
        steps = int(min(20, max(3, SYNC_TIMING_S / max(step_s, 1e-6))))

        def measure() -> float:
            without_sync: Run = functools.partial(self.step.run, sync=False)
            if not self.eager_reason:
                without_sync = CapturedSteps(self.step, [width], sync=False).run
            without, whole = (self._time(run, width, steps) for run in (without_sync, self._run))
            return max(0.0, 1 - without / whole)

        return self._without_effect(measure)

    def _compile(self) -> None:
        """Runs steps of the widest and the narrowest rows, which compile layers for every width."""
        for width in (self.step.batch_plan.widths[-1], self.step.batch_plan.widths[0]):
            self.step.run(width)

    def _settle_buckets(self, steps: int) -> None:
        for _ in range(steps):
            self.step.run(self.step.batch_plan.widths[-1])

    def _capture(self) -> Run:
        try:
            widths = self.step.batch_plan.widths
            return self._without_effect(lambda: CapturedSteps(self.step, widths)).run
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.eager_reason = f"capture failed: {str(error).splitlines()[0]}"
            return self.step.run

    def _without_effect(self, work: Callable[[], Value]) -> Value:
        """Runs steps without changing weights, counters or random states."""
        step = self.step
        step.update.halted.fill_(1.0)
        try:
            with random_states.kept(step.world.device):
                return work()
        finally:
            step.update.halted.fill_(0.0)
            step.counter.fill_(self._launched)
            step.batch_plan.seek(0)

    def _time(self, run: Run, width: int, steps: int) -> float:
        """Returns the seconds of `steps` steps after three steps of warm-up."""
        times = []
        for count in (3, steps):
            times.append(_Timestamp(self.step.world.device))
            for _ in range(count):
                run(width)
        times.append(_Timestamp(self.step.world.device))
        return times[2].since(times[1])

    def _copy_losses(self, count: int) -> torch.Tensor:
        slots = [slot % LOSSES_KEPT for slot in range(self._launched, self._launched + count)]
        self._launched += count
        kept = self.step.losses
        pieces = kept[slots[0] : slots[0] + count], kept[: max(0, slots[0] + count - LOSSES_KEPT)]
        on_gpu = kept.device.type == "cuda"
        host = torch.empty(count, 2, dtype=torch.float32, pin_memory=on_gpu)
        return host.copy_(torch.cat(pieces), non_blocking=True)

    def _results(self, block: _LaunchedBlock) -> list[Stepped]:
        world, schedule = self.step.world, self.step.batch_plan
        block.copied.wait()
        seconds = [b.since(a) for a, b in zip(block.times, block.times[1:], strict=False)]
        main_mean_s = sum(seconds) / len(seconds) if world.is_main else 0.0
        shares, norms = block.losses.unbind(1)
        *losses, mean_s = world.sum_numbers([*shares.tolist(), main_mean_s])
        self.block = max(1, min(MAX_BLOCK, int(BLOCK_S / max(mean_s, 1e-6))))
        results = []
        found = zip(losses, norms.tolist(), seconds, strict=True)
        for number, (loss, norm, step_s) in enumerate(found, block.first):
            if not math.isfinite(loss):
                raise self._loss_error(number, loss)
            samples, tokens, width = schedule.counts(number)
            padded = self.step.config.global_batch_size * width
            lr = schedule.rate(number)
            results.append(
                Stepped(
                    step=number + 1,
                    loss=loss,
                    samples=samples,
                    tokens=tokens,
                    padded_tokens=padded,
                    seconds=step_s,
                    lr=lr,
                    gradient_norm=norm,
                )
            )
        return results

    def _loss_error(self, step: int, loss: float) -> TrainingError:
        rows = ", ".join(str(index) for index in self.step.batch_plan.rows(step)[:ROWS_NAMED])
        return TrainingError(
            f"the loss of step {step + 1} is {loss}; its training rows start with {rows}"
            " (0-based); lower train.optimizer.lr or check these rows"
        )


class _Timestamp:
    """A time on the GPU's clock, recorded in its stream; on the host's clock without a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = _event() if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Waits until the device has reached this point of its stream."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "_Timestamp") -> float:
        """Waits for this time, and returns the seconds since an earlier one."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self.wait()
        return float(earlier._event.elapsed_time(self._event)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
