"""Windows of real steps: warm-up until they are steady, then timing until the mean is known."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobs.training.events import Report, Stepped
from jobs.training.probing.timing import LEAST_WINDOWS, ProbeTiming
from jobs.training.session import Session
from jobs.training.step_times import StepTimes, is_steady, mean_over

GIVE_UP_MARGIN = 0.1
"""A probe stops early only if its candidate is slower than the limit by this share."""


@dataclass(slots=True)
class Windows:
    """Timed steps, window after window."""

    widths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    results: list[Stepped] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

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
        return Windows(self.widths[-steps:], self.seconds[-steps:], self.sizes[-count:])

    def with_more(self, later: "Windows") -> StepTimes:
        """Returns the timed steps of these windows and of later ones."""
        return StepTimes(
            (*self.widths, *later.widths),
            (*self.seconds, *later.seconds),
            (*self.sizes, *later.sizes),
        )

    @property
    def spent_s(self) -> float:
        """Seconds since the start of the first window."""
        return time.monotonic() - self.begin

    @property
    def times(self) -> StepTimes:
        """The timed steps so far."""
        return StepTimes(tuple(self.widths), tuple(self.seconds), tuple(self.sizes))


class Stepper:
    """Runs windows of real steps, and reports each step as the training loop does.

    Reporting is part of the measurement, because on a small machine the receiver takes time from
    the workers. The main worker's clock decides for all.
    """

    def __init__(self, session: Session, timing: ProbeTiming, report: Report) -> None:
        self._session, self._timing, self._report = session, timing, report
        self._position = 0
        self._steady = Windows()
        """The last two windows of the warm-up, if they are equally fast."""

    def warm_up(self) -> tuple[list[float], bool]:
        """Runs windows until two are equally fast or the limit is reached.

        Returns the seconds of each step, and whether the steps are steady.
        """
        timing, windows = self._timing, Windows()
        while True:
            self._window(windows)
            steps, spent_s = len(windows.seconds), windows.spent_s
            is_long = spent_s >= timing.warmup_s and steps >= timing.warmup_steps
            steady = is_long and is_steady(windows.times)
            state = 2 if steady else int(spent_s >= timing.warmup_limit_s)
            state = int(self._session.world.broadcast(value=state))
            if state:
                self._steady = windows.last(2) if state == 2 else Windows()
                return windows.seconds, state == 2

    def measure(self, steps_of_width: dict[int, int], limit_s: float) -> tuple[Windows, bool]:
        """Times windows until the mean is known well enough, or the limit is exceeded.

        `limit_s`: mean step time above which a better candidate is known; whether it is exceeded is
        judged by the steady windows of the warm-up too. Returns the windows, and whether the probe
        stopped early.
        """
        timing, windows = self._timing, Windows()
        while True:
            self._window(windows)
            mean, spent_s = mean_over(windows.times, steps_of_width), windows.spent_s
            judged = mean_over(self._steady.with_more(windows), steps_of_width)
            least = judged.value - max(judged.half_width, GIVE_UP_MARGIN * judged.value)
            is_long = spent_s >= timing.duration_s and len(windows.seconds) >= timing.steps
            is_known = mean.half_width <= timing.half_width * mean.value
            is_over = is_long and is_known and len(windows.sizes) >= LEAST_WINDOWS
            state = 2 if least > limit_s else int(is_over or spent_s >= timing.limit_s)
            state = int(self._session.world.broadcast(value=state))
            if state:
                return windows, state == 2

    def _window(self, windows: Windows) -> None:
        world = self._session.world
        begin, results = time.monotonic(), list[Stepped]()
        ahead = 1 if world.device.type == "cuda" else 0
        is_over = False
        while not is_over:
            self._launch()
            results += self._collect(ahead)
            is_over = bool(world.broadcast(value=time.monotonic() - begin >= self._timing.window_s))
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
