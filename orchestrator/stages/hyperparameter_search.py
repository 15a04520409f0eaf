"""The quality stage: trials over the fields that affect learning, stopped early by ASHA."""

import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna.distributions
import ray.tune
import ray.tune.schedulers
import ray.tune.search.optuna
from pydantic import TypeAdapter

from jobs.errors import TrainingError
from jobs.spec import JobSpec
from jobs.spec.task import Metric
from orchestrator.decisions import search
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import KeptWorkers
from orchestrator.decisions.recovery import Cause, may_pass
from orchestrator.decisions.resolve import Params, Scalar
from orchestrator.decisions.search import Range, TrialBudget, TrialResult
from orchestrator.decisions.trial_times import TrialTiming
from orchestrator.stages import tuning
from orchestrator.stages.devices import release
from orchestrator.stages.drivers import drive_trial
from orchestrator.stages.secrets import secrets_of

ROUNDS = 3
"""Most attempts at a trial that ends because a worker or node is lost."""
ASHA_REDUCTION = 3
"""One trial in three continues at each rung of ASHA."""

TIMING: TypeAdapter[TrialTiming | None] = TypeAdapter(TrialTiming | None)


def run_trials(
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    finished: Sequence[TrialResult],
    *,
    concurrent: int,
    storage: Path,
    on_trial: Callable[[TrialResult], None],
    workers: KeptWorkers | None = None,
) -> None:
    """Run the trials that are not among `finished` on one candidate's placement.

    One at a time runs in the `workers` of the run, if there are any; several have their own.

    If all fields are lists and the trials suffice, every combination is tried; otherwise Optuna
    proposes values. A trial that ends because a worker or node is lost is repeated, up to ROUNDS
    attempts. `on_trial` gets each result.

    Raises:
        TrainingError: if no trial has a result.
    """
    done, lost = list(finished), dict[str, TrialResult]()

    def record(trial: TrialResult) -> None:
        done.append(trial)
        on_trial(trial)

    if workers and concurrent > 1:
        workers.close()
        workers = None
    for _ in range(ROUNDS):
        missing = _missing(spec, done)
        if not missing:
            return
        recorder = _Recorder(search.judged_metric(spec), candidate, budget, record)
        _round(spec, done, missing, recorder, concurrent, storage, workers)
        lost = recorder.lost
        if not lost:
            return
    for trial in lost.values():
        record(trial)
    if all(trial.failure for trial in done):
        raise TrainingError(next(iter(lost.values())).failure or "no quality trial has a result")


def _round(
    spec: JobSpec,
    finished: Sequence[TrialResult],
    missing: list[dict[str, Scalar]] | int,
    recorder: "_Recorder",
    concurrent: int,
    storage: Path,
    workers: KeptWorkers | None,
) -> None:
    candidate, budget = recorder.candidate, recorder.budget
    placement = candidate.placement
    if workers:
        workers.on(placement)  # while Tune starts the driver
    driver = ray.tune.with_parameters(
        drive_trial,
        line=workers.line if workers else None,
        secrets=secrets_of(spec),
        spec=spec,
        candidate=candidate,
        budget=budget,
        storage=storage,
    )
    resources = tuning.HEAD_ONLY if workers else tuning.driver_resources(placement)
    is_grid = isinstance(missing, list)
    reports = tuning.Reports(recorder.report, recorder.end)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, resources),
        param_space={"params": ray.tune.grid_search(missing)} if is_grid else None,
        tune_config=ray.tune.TuneConfig(
            metric=recorder.metric.name,
            mode=recorder.metric.goal,
            num_samples=1 if is_grid else missing,
            search_alg=None if is_grid else _optuna(spec, recorder.metric, finished),
            scheduler=_asha(budget),
            max_concurrent_trials=concurrent,
            reuse_actors=True,
        ),
        run_config=tuning.run_config(f"quality-{time.time_ns():x}", storage, reports),
    )
    try:
        tuner.fit()
    finally:
        recorder.release_all()
    for config, message in reports.crashed:
        recorder.lose(config["params"], message)
    if recorder.failures and not recorder.ended and not recorder.lost:
        raise TrainingError(recorder.failures[0])


def _missing(spec: JobSpec, finished: Sequence[TrialResult]) -> list[dict[str, Scalar]] | int:
    """Returns the grid points that are not done, or the number of trials left for Optuna."""
    trials = spec.sweep.trials if spec.sweep else 1
    grid = search.full_grid(search.quality_space(spec), trials)
    if grid is None:
        return max(0, trials - len(finished))
    done = [trial.params for trial in finished]
    return [point for point in grid if point not in done]


def _asha(budget: TrialBudget) -> ray.tune.schedulers.ASHAScheduler:
    return ray.tune.schedulers.ASHAScheduler(
        time_attr="step",
        max_t=budget.steps + 1,  # ASHA must not stop a trial at its last step
        grace_period=max(1, budget.grace_steps),
        reduction_factor=ASHA_REDUCTION,
    )


class _Recorder:
    """Collects the reports of each trial and turns them into a TrialResult at its end."""

    def __init__(
        self,
        metric: Metric,
        candidate: Candidate,
        budget: TrialBudget,
        on_trial: Callable[[TrialResult], None],
    ) -> None:
        self.metric = metric
        self.failures: list[str] = []
        self.ended = 0
        self.lost: dict[str, TrialResult] = {}
        """Trials to repeat, by id: a worker or node was lost."""
        self.candidate = candidate
        self.budget = budget
        self._on_trial = on_trial
        self._histories: dict[str, list[tuple[int, float]]] = {}
        self._groups = set[str]()
        """Hex ids of the placement groups of all trials."""

    def report(self, trial: str, report: dict[str, Any]) -> None:
        """Record one evaluation."""
        self._groups.update(report["groups"])
        if "failure" in report:
            return
        history = self._histories.setdefault(trial, [])
        if not history or report["step"] > history[-1][0]:  # the best one is reported again at last
            history.append((report["step"], report[self.metric.name]))

    def end(self, trial: str, last: dict[str, Any]) -> None:
        """Record the end of a trial that finished, was stopped, or reported a failure."""
        params = last["config"]["params"]
        if "failure" in last and may_pass(Cause(last["cause"])):
            self.lose(params, last["failure"])
            return
        if "failure" in last:
            self.failures.append(last["failure"])
            failed = TrialResult(trial, self.candidate.id, params, {}, failure=last["failure"])
            self._on_trial(failed)
            return
        self.ended += 1
        history = tuple(self._histories.get(trial, ()))
        reached = max((step for step, _ in history), default=last["step"])
        result = TrialResult(
            id=trial,
            candidate=self.candidate.id,
            params=params,
            metrics={name: last[name] for name in last["metric_names"]},
            history=history,
            stopped_early=reached < self.budget.steps,
            duration_s=max(0.0, last["time_total_s"] - last["waited_s"]),
            timing=TIMING.validate_python(last["timing"]),
        )
        self._on_trial(result)

    def release_all(self) -> None:
        """Free the devices of all trials, whose groups may outlive the processes that Tune ends."""
        for placement_group in self._groups:
            release(placement_group)

    def lose(self, params: Params, message: str) -> None:
        """Record a trial that may succeed when it is repeated."""
        name = f"lost-{json.dumps(dict(params), sort_keys=True)}"
        self.lost[name] = TrialResult(name, self.candidate.id, dict(params), {}, failure=message)


def _optuna(
    spec: JobSpec, metric: Metric, finished: Sequence[TrialResult]
) -> ray.tune.search.optuna.OptunaSearch:
    """Returns a TPE search over the space that knows the finished trials of earlier rounds."""
    known = [trial for trial in finished if not trial.failure]
    distributions = {
        f"params/{name}": _distribution(values)
        for name, values in search.quality_space(spec).items()
    }
    points = [{f"params/{k}": v for k, v in trial.params.items()} for trial in known]
    return ray.tune.search.optuna.OptunaSearch(
        distributions,
        metric=metric.name,
        mode=metric.goal,
        seed=random.Random(f"{spec.seed}/{len(finished)}").getrandbits(32),
        points_to_evaluate=points or None,
        evaluated_rewards=[trial.metrics[metric.name] for trial in known] or None,
    )


def _distribution(values: tuple[Scalar, ...] | Range) -> optuna.distributions.BaseDistribution:
    if isinstance(values, Range):
        return optuna.distributions.FloatDistribution(values.low, values.high, log=values.is_log)
    return optuna.distributions.CategoricalDistribution(values)
