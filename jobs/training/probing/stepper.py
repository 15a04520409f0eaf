"""Windows of real steps: warm-up until they are steady, then timing until the mean is known."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobs.training.events import Report, Stepped
from jobs.training.probing.timing import LEAST_WINDOWS, ProbeTiming
from jobs.training.session import Session
from jobs.training.step_times import (
    StepTimes,
    can_be_rescaled,
    is_steady,
    mean_over,
    mean_width,
)

GIVE_UP_MARGIN = 0.1
"""A probe stops early only if its candidate is slower than the limit by this share."""
GLANCE_S = 0.5
"""Duration of a window of the warm-up while the probe may stop early."""


@dataclass(slots=True)
class Windows:
    """Timed steps, window after window."""

    widths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    results: list[Stepped] = field(default_factory=list)

    def add(self, results: Sequence[Stepped], rows: int, wall_s: float) -> None:
        """Adds a window of steps over `rows` rows each; scales their seconds to sum to `wall_s`."""
        counted = sum(result.seconds for result in results)
        self.widths += [result.padded_tokens // rows for result in results]
        self.seconds += [result.seconds * wall_s / counted for result in results]
        self.sizes.append(len(results))
        self.results += results

    def last(self, count: int) -> "Windows":
        """Returns the last windows."""
        steps = sum(self.sizes[-count:])
        parts = (self.widths[-steps:], self.seconds[-steps:], self.sizes[-count:])
        return Windows(*parts, self.results[-steps:])

    def with_more(self, later: "Windows") -> StepTimes:
        """Returns the timed steps of these windows and of later ones."""
        return StepTimes(
            (*self.widths, *later.widths),
            (*self.seconds, *later.seconds),
            (*self.sizes, *later.sizes),
        )

    @property
    def spent_s(self) -> float:
        """Seconds that all windows took."""
        return sum(self.seconds)

    @property
    def times(self) -> StepTimes:
        """The timed steps so far."""
        return StepTimes(tuple(self.widths), tuple(self.seconds), tuple(self.sizes))


class Stepper:
    """Runs windows of real steps, and reports each step as the training loop does.

    Reporting is part of the measurement, because on a small machine the receiver takes time from
    the workers. The main worker's clock decides for all.
    """

    def __init__(
        self, session: Session, timing: ProbeTiming, report: Report, limit_s: float = math.inf
    ) -> None:
        """`limit_s`: mean step time above which a better candidate is known."""
        self._session, self._timing, self._report = session, timing, report
        self._limit_s, self._steps_of_width = limit_s, session.batch_plan.steps_of_width()
        self._position = 0
        self._steady = Windows()
        """The last two windows of the warm-up, if they are equally fast."""

    def warm_up(self) -> tuple[list[float], bool]:
        """Runs windows until two are equally fast or the longest warm-up is over.

        Returns the seconds of each step, and whether the steps are steady. Two short windows that
        are equally fast, and slower than the limit, end the warm-up before its least duration.
        """
        timing, windows, whole = self._timing, Windows(), 0
        is_short = math.isfinite(self._limit_s)
        while True:
            self._window(windows, GLANCE_S if is_short else timing.window_s)
            whole += not is_short
            steps, spent_s = len(windows.seconds), windows.spent_s
            is_long = spent_s >= timing.warmup_s and steps >= timing.warmup_steps
            is_enough = (is_long and whole >= 2) or self._is_exceeded_early(windows)
            is_short = is_short and not is_long
            steady = is_enough and is_steady(windows.times)
            state = 2 if steady else int(spent_s >= timing.warmup_limit_s)
            state = int(self._session.world.broadcast(value=state))
            if state:
                self._steady = windows.last(2) if state == 2 else Windows()
                return windows.seconds, state == 2

    def measure(self) -> tuple[Windows, bool]:
        """Times windows until the mean is known well enough, or the limit is exceeded.

        Whether it is exceeded is judged by the steady windows of the warm-up too, and by them alone
        at first. Returns the windows, and whether the probe stopped early.
        """
        timing, windows, world = self._timing, Windows(), self._session.world
        if world.broadcast(
            value=bool(self._steady.sizes) and self._is_exceeded(self._steady.times)
        ):
            return self._steady, True
        while True:
            self._window(windows, timing.window_s)
            mean, spent_s = mean_over(windows.times, self._steps_of_width), windows.spent_s
            is_long = spent_s >= timing.duration_s and len(windows.seconds) >= timing.steps
            is_known = mean.half_width <= timing.half_width * mean.value
            is_over = is_long and is_known and len(windows.sizes) >= LEAST_WINDOWS
            is_slow = self._is_exceeded(self._steady.with_more(windows))
            state = 2 if is_slow else int(is_over or spent_s >= timing.limit_s)
            state = int(world.broadcast(value=state))
            if state:
                return windows, state == 2

    def _is_exceeded_early(self, windows: Windows) -> bool:
        """Returns whether the last two windows exceed the limit.

        They must be later than the first steps.
        """
        last = windows.last(2)
        is_later = len(windows.seconds) - len(last.seconds) >= self._timing.warmup_steps
        return is_later and self._is_exceeded(last.times)

    def _is_exceeded(self, times: StepTimes) -> bool:
        """Returns whether the mean step is certainly slower than the limit.

        A few steps, which may all be of the widest rows, count only if their mean can be rescaled
        to the whole run, or if they are no wider than its steps are on average.
        """
        is_wider = sum(times.widths) / len(times.widths) > mean_width(self._steps_of_width)
        if is_wider and not can_be_rescaled(times):
            return False
        mean = mean_over(times, self._steps_of_width)
        return mean.value - max(mean.half_width, GIVE_UP_MARGIN * mean.value) > self._limit_s

    def _window(self, windows: Windows, window_s: float) -> None:
        world = self._session.world
        begin, results = time.monotonic(), list[Stepped]()
        ahead = 1 if world.device.type == "cuda" else 0
        is_over = False
        while not is_over:
            self._launch()
            results += self._collect(ahead)
            is_over = bool(world.broadcast(value=time.monotonic() - begin >= window_s))
        results += self._collect(ahead=0)
        windows.add(results, self._session.config.global_batch_size, time.monotonic() - begin)

    def _collect(self, ahead: int) -> list[Stepped]:
        done = self._session.engine.collect(ahead=ahead)
        for result in done if self._session.world.is_main else ():
            self._report(result)
        return done

    def _launch(self) -> None:
        """Launches a block of steps; starts the epoch again if the probe is longer."""
        engine, per_epoch = self._session.engine, self._session.batch_plan.steps_per_epoch
        first = self._position % per_epoch
        last = min(first + engine.block, per_epoch)
        if first == 0:
            engine.seek(0)
        engine.launch(first, last)
        self._position += last - first
