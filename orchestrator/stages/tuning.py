"""Ray Tune for the speed and quality stages: driver resources and trial reports."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.tune
import ray.tune.execution.class_cache

from cluster.placement import Placement
from orchestrator.stages.devices import ON_HEAD, selector, worker_resources

HEAD_ONLY = ray.tune.PlacementGroupFactory([ON_HEAD])
"""Resources of a trial that only drives workers, so that drivers take no devices."""

TrialCallback = Callable[[str, dict[str, Any]], None]
"""Gets a trial's id and its report."""


def driver_resources(placement: Placement) -> ray.tune.PlacementGroupFactory:
    """Returns a trial's resources: a device if it trains in its own process, else HEAD_ONLY."""
    if placement.workers > 1:
        return HEAD_ONLY
    return ray.tune.PlacementGroupFactory(
        [worker_resources(placement)], bundle_label_selector=[selector(placement)]
    )


def run_config(name: str, storage: Path, callback: ray.tune.Callback) -> ray.tune.RunConfig:
    """Returns a run configuration without console output, with files in the run's folder."""
    _keep_keys_here()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # `Reports` records crashes
    return ray.tune.RunConfig(
        name=name, storage_path=str(storage / "ray"), verbose=0, callbacks=[callback]
    )


def _keep_keys_here() -> None:
    """Keep Ray Tune from passing this process's AWS keys to trials.

    Ray Tune puts them into the trials' runtime environment, which `ps` and Ray's logs show. Nodes
    have keys of their own.
    """
    cache = ray.tune.execution.class_cache
    passed = cache.ENV_VARS_TO_PROPAGATE
    cache.ENV_VARS_TO_PROPAGATE = {name for name in passed if not name.startswith("AWS_")}


class Reports(ray.tune.Callback):  # type: ignore[misc]
    """Calls functions for every report and every end of a trial."""

    def __init__(self, on_report: TrialCallback, on_end: TrialCallback | None = None) -> None:
        self._on_report = on_report
        self._on_end = on_end
        self.crashed: list[tuple[dict[str, Any], str]] = []
        """Configuration and error of each trial that died without a report."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles callbacks for restoring an experiment, which Winnow never does

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        """Pass on a trial's report."""
        self._on_report(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Pass on the end of a trial, with its last report."""
        if self._on_end:
            self._on_end(trial.trial_id, {**trial.last_result, "config": trial.config})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record a crash; before its first report, a trial's result has no configuration.

        A trial that reported its failure before ends as the others do.
        """
        if "failure" in (trial.last_result or {}):
            self.on_trial_complete(iteration, trials, trial)
            return
        message = last_line(trial.get_pickled_error() or trial.get_error() or "")
        self.crashed.append((dict(trial.config), message))


def last_line(error: object) -> str:
    """Returns the last line of a traceback, which has the exception."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
