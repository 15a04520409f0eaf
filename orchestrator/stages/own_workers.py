"""Trains the trials of a process that Ray Tune reuses, where several of them run at a time."""

import functools
from pathlib import Path

from cluster.placement import Placement
from jobs.training.config import TrainingConfig
from jobs.training.events import Report
from jobs.training.loop import train
from jobs.training.restart import Kept
from orchestrator.stages.line import packed
from orchestrator.stages.orders import train_in_worker
from orchestrator.stages.secrets import Secrets
from orchestrator.stages.worker import check_node, lower_priority
from orchestrator.stages.workers import Workers


class Trials:
    """Runs the trials of one process after each other, in it or in workers that it keeps."""

    def __init__(self) -> None:
        self._workers: Workers | None = None
        self._kept = Kept()

    @property
    def groups(self) -> list[str]:
        """Hex ids of the placement groups that this process holds."""
        return self._workers.groups if self._workers else []

    def run(
        self,
        placement: Placement,
        secrets: Secrets,
        config: TrainingConfig,
        report: Report,
        *,
        storage: Path,
        wait_s: float,
    ) -> None:
        """Train in this process for one worker, else in a Ray Train group.

        `report` gets the events; `wait_s` is how long to wait for busy devices. After a failure the
        next trial begins in fresh workers, unless it runs in this process, which the caller has to
        end.
        """
        if placement.workers == 1:
            check_node(placement)
            lower_priority()
            with_secrets = secrets.bound_to(functools.partial(train, kept=self._kept))
            with_secrets(config, report)
            return
        if self._workers is None:
            self._workers = Workers(secrets, storage, wait_s)
        self._workers.on(placement)
        self._workers.line.run(packed(train_in_worker, config, keeps=True), report)

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._workers:
            self._workers.close()
        self._workers = None


TRIALS = Trials()
"""The trials of this process, which Tune reuses for as long as there are more."""
