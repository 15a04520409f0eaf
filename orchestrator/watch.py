"""Turns the events of a fit into notices: loss, rate, time left and projected cost."""

from collections.abc import Callable, Mapping

from jobs.spec.quantities import format_metric, format_metrics
from jobs.training.events import (
    BaseScored,
    BestKept,
    CheckpointSkipped,
    Evaluated,
    Event,
    Interrupted,
    Metered,
    Started,
    Stepped,
    Stopped,
    Tokenised,
)
from orchestrator.decisions.measurement import Prediction, disturbances
from orchestrator.notices import Notify, Pace, Progress, Remark
from orchestrator.records.receipt import Projection
from orchestrator.records.receipt_text import show_time, speed_text

PROJECTED_AT = (0.05, 0.25, 0.5)
"""Shares of the steps at which the total time is projected."""
WARN_OFF = 0.1
"""Relative difference between projection and prediction from which on a warning is shown."""

PUBLISH_EVERY_S = 1.0
"""Shortest time between two publications of gauges; Prometheus reads them less often."""
SMOOTHING = 0.05
"""Weight of the newest step in the displayed rate."""


class FitWatch:
    """Turns the events of a fit into notices."""

    def __init__(
        self,
        notify: Notify,
        price_usd_per_hour: float | None,
        prediction: Prediction | None,
        clock: Callable[[], float],
        publish: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        """`publish` gets gauges for monitoring, at most once every PUBLISH_EVERY_S."""
        self._notify, self._publish, self._pace = notify, publish, Pace(PUBLISH_EVERY_S, clock)
        self._price = price_usd_per_hour
        self._prediction, self._clock, self._begin = prediction, clock, clock()
        self._total = 1
        self._step_s: float | None = None
        self._first = 0
        self._stepping_s = 0.0
        self.projections: list[Projection] = []
        """Projected total times, at PROJECTED_AT."""

    def show(self, event: Event) -> None:
        """Send the notices of one event."""
        match event:
            case Tokenised():
                self._notify(Progress(f"tokens {event.split}", event.done, event.total))
            case BaseScored():
                self._notify(Progress("base", event.done, event.total, "rows scored"))
            case Started():
                self._start(event)
            case Stepped():
                self._notify(Progress("fit", event.step, self._total, self._describe(event)))
                self._project(event)
                self._measure(event)
            case _:
                self._remark(*_remarks(event))

    def _start(self, event: Started) -> None:
        self._total, self._first = event.total_steps, event.first_step
        self._remark(f"{event.total_steps} steps, {event.mode}")
        self._count(event.left_out, "left out: nothing to learn within data.max_length")
        self._count(event.cut, "cut off at data.max_length")
        self._remark(*event.remarks)

    def _count(self, rows: tuple[int, int], what: str) -> None:
        """Say of how many training and evaluation rows something holds, if of any."""
        if any(rows):
            self._remark(f"{rows[0]} training and {rows[1]} evaluation rows are {what}")

    def _remark(self, *texts: str) -> None:
        for text in texts:
            self._notify(Remark(text))

    def _project(self, event: Stepped) -> None:
        """Project the total time at PROJECTED_AT, and warn if it differs from the prediction."""
        self._stepping_s += event.seconds
        due = PROJECTED_AT[len(self.projections) :]
        share = event.step / self._total
        if self._prediction is None or self._first or not due or share < due[0]:
            return
        phases, left = self._prediction.phases, 1 - share
        later_s = phases.evaluations + phases.checkpoints + phases.end if phases else 0.0
        time_s = self._clock() - self._begin + self._stepping_s * left / share + later_s * left
        self.projections.append(Projection(due[0], time_s))
        off = time_s / self._prediction.time_s.mean - 1
        if abs(off) >= WARN_OFF:
            self._remark(
                f"{share:.0%} done: projected total time {show_time(time_s)}, {off:+.0%} from"
                f" the predicted {show_time(self._prediction.time_s.mean)}"
            )

    def _measure(self, event: Stepped) -> None:
        if not self._pace.is_due(is_last=event.step >= self._total):
            return
        values = {"loss": event.loss, "step": event.step, "steps": self._total}
        if self._step_s:
            values["samples_per_second"] = event.samples / self._step_s
        if self._price is not None:
            values["usd_per_hour"] = self._price
        if self.projections and self._prediction:
            values["projected_seconds"] = self.projections[-1].time_s
            values["predicted_seconds"] = self._prediction.time_s.mean
        self._publish(values)

    def _describe(self, event: Stepped) -> str:
        before = event.seconds if self._step_s is None else self._step_s
        self._step_s = before + SMOOTHING * (event.seconds - before)
        rate = event.samples / self._step_s if self._step_s else 0.0
        left_s = (self._total - event.step) * self._step_s
        text = f"loss {format_metric(event.loss)}, {rate:,.0f} samples/s, {left_s:.0f} s left"
        if self._price is None:
            return text
        return f"{text}, {(event.elapsed_s + left_s) * self._price / 3600:.4f} USD in all"


def _remarks(event: Event) -> list[str]:
    """Returns the sentences of an event that is not progress."""
    match event:
        case Evaluated():
            return [f"step {event.step}: {format_metrics(event.metrics)}"]
        case Metered():
            return [speed_text(event), *(f"disturbed: {text}" for text in disturbances(event))]
        case CheckpointSkipped():
            return [event.message]
        case Interrupted():
            return [f"ended early after step {event.step}, with a checkpoint"]
        case BestKept():
            return [str(event)]
        case Stopped():
            return [f"the budget is used up after step {event.step}"]
    return []
