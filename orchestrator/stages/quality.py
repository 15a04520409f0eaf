"""The quality stage: trials over the fields that change learning, stopped early by ASHA."""

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna.distributions
import ray.tune
import ray.tune.schedulers
import ray.tune.search.optuna

from jobs.errors import TrainingError, first_line
from jobs.spec import JobSpec
from jobs.spec.task import Metric
from jobs.training.events import Evaluated, Event, WorkersReady
from jobs.training.loop import train
from orchestrator.decisions import search
from orchestrator.decisions.plan import Candidate
from orchestrator.decisions.recovery import Cause, may_pass
from orchestrator.decisions.resolve import Params, Scalar, training_config, with_params
from orchestrator.decisions.search import Range, TrialBudget, TrialResult
from orchestrator.stages import causes, tuning
from orchestrator.stages.devices import release
from orchestrator.stages.group import Patience, Work
from orchestrator.stages.secrets import secrets_of

ROUNDS = 3
"""How often a trial is begun that a lost worker or node ended."""
ASHA_REDUCTION = 3
"""One trial in three goes on at each rung."""

WORST = {"max": -sys.float_info.max, "min": sys.float_info.max}
"""What a failed trial reports, by the metric's goal: worse than any value."""
GRACE_EVALUATIONS = 2
"""Evaluations that every trial gets: during warm-up of the learning rate all look alike."""


def run_trials(
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    finished: Sequence[TrialResult],
    *,
    concurrent: int,
    storage: Path,
    on_trial: Callable[[TrialResult], None],
) -> None:
    """Run the trials that are not among `finished` on one candidate's placement.

    Fields given as lists are tried in full when the trials suffice, else Optuna proposes values.
    What a lost worker or node ended is run again, ROUNDS times in all. Raises TrainingError when no
    trial came to an end.
    """
    done, lost = list(finished), dict[str, TrialResult]()

    def take(trial: TrialResult) -> None:
        done.append(trial)
        on_trial(trial)

    for _ in range(ROUNDS):
        missing = _missing(spec, done)
        if not missing:
            return
        recorder = _Recorder(search.judged_metric(spec), candidate, budget, take)
        _round(spec, candidate, budget, done, missing, recorder, concurrent, storage)
        lost = recorder.lost
        if not lost:
            return
    for trial in lost.values():
        take(trial)
    if all(trial.failure for trial in done):
        raise TrainingError(next(iter(lost.values())).failure or "no trial came to an end")


def _round(
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    finished: Sequence[TrialResult],
    missing: list[dict[str, Scalar]] | int,
    recorder: "_Recorder",
    concurrent: int,
    storage: Path,
) -> None:
    driver = ray.tune.with_parameters(
        _drive,
        work=secrets_of(spec).given_to(train),
        spec=spec,
        candidate=candidate,
        budget=budget,
        storage=storage,
    )
    is_grid = isinstance(missing, list)
    reports = tuning.Reports(recorder.report, recorder.end)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, tuning.driver_resources(candidate.placement)),
        param_space={"params": ray.tune.grid_search(missing)} if is_grid else None,
        tune_config=ray.tune.TuneConfig(
            metric=recorder.metric.name,
            mode=recorder.metric.goal,
            num_samples=1 if is_grid else missing,
            search_alg=None if is_grid else _optuna(spec, recorder.metric, finished),
            scheduler=_asha(budget),
            max_concurrent_trials=concurrent,
        ),
        run_config=tuning.run_config(f"quality-{time.time_ns():x}", storage, reports),
    )
    tuner.fit()
    for params, words in reports.crashed:
        recorder.lose(params["params"], words)
    if recorder.failures and not recorder.ended and not recorder.lost:
        raise TrainingError(recorder.failures[0])


def _missing(spec: JobSpec, finished: Sequence[TrialResult]) -> list[dict[str, Scalar]] | int:
    """The points of a full grid that are not done, or how many more Optuna shall propose."""
    trials = spec.sweep.trials if spec.sweep else 1
    grid = search.full_grid(search.quality_space(spec), trials)
    if grid is None:
        return max(0, trials - len(finished))
    done = [trial.params for trial in finished]
    return [point for point in grid if point not in done]


def _asha(budget: TrialBudget) -> ray.tune.schedulers.ASHAScheduler:
    return ray.tune.schedulers.ASHAScheduler(
        time_attr="step",
        max_t=budget.steps + 1,  # a trial that runs to its end ends by itself
        grace_period=max(1, GRACE_EVALUATIONS * int(budget.eval_every.value)),
        reduction_factor=ASHA_REDUCTION,
    )


class _Recorder:
    """Gathers the reports of each trial into a TrialResult when it ends."""

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
        """What a lost worker or node ended, by id: to be run again."""
        self._candidate = candidate
        self._budget = budget
        self._on_trial = on_trial
        self._histories: dict[str, list[tuple[int, float]]] = {}

    def report(self, trial: str, report: dict[str, Any]) -> None:
        """Keep one evaluation."""
        if "failure" in report:
            return
        self._histories.setdefault(trial, []).append((report["step"], report[self.metric.name]))

    def end(self, trial: str, last: dict[str, Any]) -> None:
        """Hand over a finished or stopped trial, or one that said why it failed."""
        for placement_group in last.get("groups", ()):
            release(placement_group)
        params = last["config"]["params"]
        if "failure" in last and may_pass(Cause(last["cause"])):
            self.lose(params, last["failure"])
            return
        if "failure" in last:
            self.failures.append(last["failure"])
            failed = TrialResult(trial, self._candidate.id, params, {}, failure=last["failure"])
            self._on_trial(failed)
            return
        self.ended += 1
        result = TrialResult(
            id=trial,
            candidate=self._candidate.id,
            params=params,
            metrics={name: last[name] for name in last["metric_names"]},
            history=tuple(self._histories.get(trial, ())),
            stopped_early=last["step"] < self._budget.steps,
            duration_s=last["time_total_s"],
            start_s=next(iter(last["start_s"]), None),
        )
        self._on_trial(result)

    def lose(self, params: Params, words: str) -> None:
        """Note a trial that may come to an end when it is run again."""
        name = f"lost-{json.dumps(dict(params), sort_keys=True)}"
        self.lost[name] = TrialResult(name, self._candidate.id, dict(params), {}, failure=words)


def _drive(
    config: dict[str, Any],
    *,
    work: Work,
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    storage: Path,
) -> None:
    try:
        _train(work, config["params"], spec, candidate, budget, storage)
    except Exception as error:  # noqa: BLE001 - told to the sweep, which goes on
        judged = search.judged_metric(spec)
        worst = {"step": budget.steps, judged.name: WORST[judged.goal]}
        ray.tune.report({**worst, "failure": first_line(error), "cause": causes.of_worker(error)})


def _train(
    work: Work,
    params: Params,
    spec: JobSpec,
    candidate: Candidate,
    budget: TrialBudget,
    storage: Path,
) -> None:
    shorter: Params = {"train.epochs": budget.epochs, "train.eval.every": str(budget.eval_every)}
    resolved = training_config(with_params(spec, shorter), candidate.execution, params)

    groups: list[str] = []
    began, start_s = time.monotonic(), list[float]()
    patience = Patience(spec.wait.timeout.total_seconds())

    def report(event: Event) -> None:
        if isinstance(event, WorkersReady) and candidate.placement.workers > 1:
            start_s.append(time.monotonic() - began - patience.waited_s)
        if isinstance(event, Evaluated):
            names = list(event.metrics)
            own = {"step": event.step, "metric_names": names, "groups": list(groups)}
            ray.tune.report({**own, "start_s": list(start_s), **event.metrics})

    tuning.run_on(
        candidate.placement,
        work,
        resolved,
        report,
        name="trial",
        storage=storage,
        patience=patience,
        on_group=groups.append,
    )


def _optuna(
    spec: JobSpec, metric: Metric, finished: Sequence[TrialResult]
) -> ray.tune.search.optuna.OptunaSearch:
    """TPE over the space, told of the trials that a run before this one finished."""
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
