"""What both Ray Tune stages share: where drivers sit, how work is run, how reports come back."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.tune
import ray.tune.execution.class_cache

from cluster.placement import Placement
from orchestrator.stages.devices import selector, worker_resources
from orchestrator.stages.group import Patience, Report, Start, Work, stream
from orchestrator.stages.worker import check_node, lower_priority

HEAD_ONLY = ray.tune.PlacementGroupFactory([{"node:__internal_head__": 0.001}])
"""All that the driver of a worker group reserves, so that drivers never starve their workers."""

TrialCallback = Callable[[str, dict[str, Any]], None]
"""Takes a trial's id and what it reported."""


def driver_resources(placement: Placement) -> ray.tune.PlacementGroupFactory:
    """A one-worker trial trains in its own process and holds the device; others hold the head."""
    if placement.workers > 1:
        return HEAD_ONLY
    return ray.tune.PlacementGroupFactory(
        [worker_resources(placement)], bundle_label_selector=[selector(placement)]
    )


def run_on(
    placement: Placement,
    work: Work,
    payload: object,
    report: Report,
    *,
    name: str,
    storage: Path,
    patience: Patience,
    on_group: Callable[[str], None],
) -> None:
    """Do the work here for one worker, else in a Ray Train group; `report` takes its events."""
    if placement.workers == 1:
        check_node(placement)
        lower_priority()
        work(payload, report)
        return
    events = stream(Start(work, payload, placement, name, storage, on_group), patience)
    with contextlib.closing(events):
        for event in events:
            report(event)


def run_config(name: str, storage: Path, callback: ray.tune.Callback) -> ray.tune.RunConfig:
    """Quiet, under the run's folder, with our own record of what trials report."""
    _keep_keys_here()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # crashes are told by `Reports`
    return ray.tune.RunConfig(
        name=name, storage_path=str(storage / "ray"), verbose=0, callbacks=[callback]
    )


def _keep_keys_here() -> None:
    """Keep Ray Tune from naming this process's AWS keys on the command lines of trials.

    It puts them into their runtime environment, which `ps` and Ray's logs show; nodes have theirs.
    """
    cache = ray.tune.execution.class_cache
    passed = cache.ENV_VARS_TO_PROPAGATE
    cache.ENV_VARS_TO_PROPAGATE = {name for name in passed if not name.startswith("AWS_")}


class Reports(ray.tune.Callback):  # type: ignore[misc]
    """Hands every report and every end of a trial to plain functions."""

    def __init__(self, on_report: TrialCallback, on_end: TrialCallback | None = None) -> None:
        self._on_report = on_report
        self._on_end = on_end
        self.crashed: list[tuple[dict[str, Any], str]] = []
        """Configuration of trials that died without a word, and what Ray says of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune saves its callbacks for a restore that Winnow never does

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        """Pass on a report."""
        self._on_report(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Pass on the end of a trial, with its last report."""
        if self._on_end:
            self._on_end(trial.trial_id, {**trial.last_result, "config": trial.config})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Note a crash; the trial's result holds no configuration before its first report."""
        words = last_line(trial.get_pickled_error() or trial.get_error() or "")
        self.crashed.append((dict(trial.config), words))


def last_line(error: object) -> str:
    """The line of a traceback that says what was wrong."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
