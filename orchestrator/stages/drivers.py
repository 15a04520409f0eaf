"""What runs in the processes that Ray Tune starts; they import torch only to train themselves."""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray.tune

from jobs.errors import WinnowError, first_line
from jobs.spec import JobSpec
from jobs.training.config import TrainingConfig
from jobs.training.events import Evaluated, Event, OutOfMemory, Probed, Unprobed
from orchestrator.decisions import search, trial_times
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import summarise
from orchestrator.decisions.recovery import Cause
from orchestrator.decisions.resolve import Params, probe_timing, training_config, with_params
from orchestrator.decisions.search import TrialBudget
from orchestrator.decisions.trial_times import TrialTimer
from orchestrator.stages import failures
from orchestrator.stages.line import Line, packed
from orchestrator.stages.orders import probe_in_worker, train_in_worker
from orchestrator.stages.secrets import Secrets

WORST = {"max": -sys.float_info.max, "min": sys.float_info.max}
"""Metric value that a failed trial reports, by the metric's goal: worse than any real value."""
STOP_TIMEOUT_S = 90
"""How long a trial that is stopped early may take to end, before Tune gives up its process."""


def drive_probes(
    config: dict[str, Any], *, line: Line, groups: Sequence[bytes], silences: Sequence[float]
) -> None:
    """Probe the candidates of a placement in the workers of the run, and report what they find.

    `groups` has the pickled requests of each placement, `silences` how long its workers may report
    nothing.
    """
    number, is_full = config["placement"], list[str]()

    def report(event: Event) -> None:
        if isinstance(event, Probed | Unprobed | OutOfMemory):
            ray.tune.report({"measurement": dataclasses.asdict(summarise(event))})
        if isinstance(event, OutOfMemory):
            is_full.append(event.candidate)

    call = packed(probe_in_worker, (groups[number], config["give_up"]))
    try:
        line.run(
            call,
            report,
            silence_s=silences[number],
            log=lambda text: ray.tune.report({"remark": text}),
        )
        if is_full:
            line.renew()  # the allocator's state would distort later measurements
    except failures.BusyError as error:
        ray.tune.report({"busy": number, "message": str(error)})
    except WinnowError as error:
        ray.tune.report({"failure": str(error), "cause": failures.classify_worker_error(error)})


def drive_trial(
    config: dict[str, Any],
    *,
    line: Line | None,
    secrets: Secrets,
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    storage: Path,
) -> None:
    """Train with some values of the searched fields, and report each evaluation.

    Without a line to the workers of the run, this process trains, or has workers of its own.
    """
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(STOP_TIMEOUT_S)
    shorter: Params = {"train.epochs": budget.epochs, "train.eval.every": str(budget.eval_every)}
    execution, own = candidate.execution, _Own()
    try:
        resolved = training_config(with_params(spec, shorter), execution, config["params"])
        if line and trial_times.is_neutral(config["params"]):
            timing = probe_timing(spec, execution)
            own.timer = TrialTimer(timing, resolved.global_batch_size, budget.width)
        if line:
            call = packed(train_in_worker, resolved, keeps=True)
            line.run(call, own.report, on_begin=own.begin)
        else:
            wait_s = spec.wait.timeout.total_seconds()
            own.run(candidate.placement, secrets, resolved, storage, wait_s)
    except Exception as error:
        judged, cause = search.judged_metric(spec), failures.classify_worker_error(error)
        failure = {"failure": first_line(error), "cause": cause, "groups": own.groups}
        ray.tune.report({"step": budget.steps, judged.name: WORST[judged.goal], **failure})
        if line is None and candidate.placement.workers == 1 and cause is not Cause.INPUT:
            raise  # this process may be spoiled, so that Tune must not reuse it


class _Own:
    """Reports of a trial, and the workers of its process if it has some."""

    def __init__(self) -> None:
        self._given_s, self._waited_s = time.monotonic(), 0.0
        self.timer: TrialTimer | None = None
        """Times the steps, where nothing else of this run uses the machine."""

    @property
    def groups(self) -> list[str]:
        """Hex ids of the placement groups of this process."""
        module = sys.modules.get("orchestrator.stages.own_workers")
        return list(module.TRIALS.groups) if module else []

    def begin(self) -> None:
        """The workers begin; the wait until then is no cost of the trial."""
        self._waited_s = time.monotonic() - self._given_s

    def report(self, event: Event) -> None:
        """Report an evaluation to Ray Tune, with the time of the steps before it."""
        if self.timer:
            self.timer.take(event)
        if isinstance(event, Evaluated):
            own = {"step": event.step, "metric_names": list(event.metrics)}
            own |= {"groups": self.groups, "waited_s": self._waited_s}
            timed = self.timer.timed() if self.timer else None
            own |= {"timing": dataclasses.asdict(timed) if timed else None}
            ray.tune.report({**own, **event.metrics})

    def run(
        self, placement: Any, secrets: Secrets, config: TrainingConfig, storage: Path, wait_s: float
    ) -> None:
        """Train in this process, or in workers that it starts and keeps."""
        from orchestrator.stages.own_workers import TRIALS

        TRIALS.run(placement, secrets, config, self.report, storage=storage, wait_s=wait_s)
