"""Fills the caches that workers of this machine read, while they and their cluster start."""

import contextlib
import threading

from jobs.spec import JobSpec
from orchestrator.decisions.resolve import Execution, training_config
from orchestrator.notices import Notify, Progress
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run

ANY = Execution(1, "fp32", "cpu")
"""Of an execution: rows are tokenised alike for all."""


class Prefetching:
    """Fills the caches of this machine in a thread, from `begin` until they are full.

    What goes wrong there is told by the plan and the workers, which need the same.
    """

    def __init__(self, spec: JobSpec, run: Run, notify: Notify) -> None:
        self._spec, self._run, self._notify = spec, run, notify
        self._has_begun = False

    def begin(self) -> None:
        """Begin it, unless it has begun or the run is trained.

        Returns once all modules are imported: two threads that import the same could see half of
        one.
        """
        if self._has_begun or self._run.read("fit", FitResult) is not None:
            return
        self._has_begun = True
        from jobs.training import prefetch  # imports torch

        config = training_config(self._spec, ANY, {})

        def work() -> None:
            with contextlib.suppress(Exception):
                prefetch.fill(config, self._tell)

        with contextlib.suppress(Exception):
            prefetch.load_modules(config)
            threading.Thread(target=work, daemon=True, name="prefetching").start()

    def _tell(self, split: str, done: int, total: int) -> None:
        self._notify(Progress(f"tokens {split}", done, total))
