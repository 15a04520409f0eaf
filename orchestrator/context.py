"""The objects that all stages of one run share."""

import time
from dataclasses import dataclass, field

from jobs.spec import JobSpec
from jobs.storage.storage import Storage
from orchestrator.decisions.leases import Devices, KeptWorkers, Unqueued
from orchestrator.notices import Notify, Remark
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from orchestrator.tracking import Tracking


class WorkClock:
    """Counts the seconds of a run without those for which it waits for devices."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def __call__(self) -> float:
        """Returns seconds since an arbitrary moment."""
        return time.monotonic() - self._waited_s

    def leave_out(self, seconds: float) -> None:
        """Leave out a wait that has just ended."""
        self._waited_s += seconds


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that all stages of one run share."""

    spec: JobSpec
    run: Run
    storage: Storage
    notify: Notify
    serve_port: int
    clock: WorkClock = field(default_factory=WorkClock)
    began: float = field(default_factory=time.monotonic)
    """Value of `clock` at the start, for the budget."""
    accepts_changes: bool = False
    """Whether training may continue from a checkpoint of changed inputs."""
    devices: Devices = field(default_factory=Unqueued)
    """Leases devices to the run."""
    workers: KeptWorkers | None = None
    """The workers that stages give to each other; None if each stage starts its own."""
    tracking: Tracking = field(default_factory=Tracking)
    """The trackers that the job names; none before the plan is made."""

    @property
    def is_trained(self) -> bool:
        """Whether the run has a trained model."""
        return self.run.read("fit", FitResult) is not None

    def remark(self, text: str) -> None:
        """Send a sentence to the user."""
        self.notify(Remark(text))
