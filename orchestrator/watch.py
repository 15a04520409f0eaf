"""What a person sees of a fit while it runs: loss, rate, time left and projected cost."""

from jobs.training.events import Evaluated, Event, Metered, Started, Stepped, Tokenised
from orchestrator.notices import Notify, Progress, Remark
from orchestrator.records.report import speed_text

SMOOTHING = 0.05
"""Weight of the newest step in the rate that is shown."""


class FitWatch:
    """Turns the events of a fit into notices."""

    def __init__(self, notify: Notify, price_usd_per_hour: float | None) -> None:
        self._notify = notify
        self._price = price_usd_per_hour
        self._total = 1
        self._step_s: float | None = None

    def show(self, event: Event) -> None:
        """Tell about one event."""
        match event:
            case Tokenised():
                self._notify(Progress(f"tokens {event.split}", event.done, event.total))
            case Started():
                self._start(event)
            case Stepped():
                self._notify(Progress("fit", event.step, self._total, self._describe(event)))
            case Evaluated():
                scores = ", ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
                self._notify(Remark(f"step {event.step}: {scores}"))
            case Metered():
                self._notify(Remark(speed_text(event)))

    def _start(self, event: Started) -> None:
        self._total = event.total_steps
        self._notify(Remark(f"{event.total_steps} steps, {event.mode}"))
        if event.left_out:
            self._notify(
                Remark(f"{event.left_out} rows have no response within data.max_length: left out")
            )

    def _describe(self, event: Stepped) -> str:
        before = event.seconds if self._step_s is None else self._step_s
        self._step_s = before + SMOOTHING * (event.seconds - before)
        rate = event.samples / self._step_s if self._step_s else 0.0
        left_s = (self._total - event.step) * self._step_s
        text = f"loss {event.loss:.4f}, {rate:,.0f} samples/s, {left_s:.0f} s left"
        if self._price is None:
            return text
        return f"{text}, {(event.elapsed_s + left_s) * self._price / 3600:.4f} USD in all"
