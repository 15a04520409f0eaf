"""The speed stage: measures every candidate with a short probe on Ray Tune."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle
import ray.exceptions
import ray.tune
import ray.tune.search
from pydantic import TypeAdapter

from cluster import labels
from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.spec import JobSpec
from jobs.training.probing import environment
from jobs.training.probing.probe import ProbeRequest
from jobs.training.probing.timing import GiveUp
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import KeptWorkers, Taken, Unqueued
from orchestrator.decisions.measurement import Launch, Measurement
from orchestrator.decisions.recovery import Cause, Failed, may_pass
from orchestrator.decisions.resolve import probe_timing, training_config
from orchestrator.stages import tuning
from orchestrator.stages.drivers import drive_probes
from orchestrator.stages.secrets import secrets_of
from orchestrator.stages.workers import Workers

ROUNDS_WITHOUT_RESULT = 3
"""Consecutive rounds of probes without any result after which the stage fails, by default."""
ENVIRONMENT_TIMEOUT_S = 60.0
"""How long a node may take to import torch and describe itself."""

MEASUREMENT = TypeAdapter(Measurement)

GiveUpRule = Callable[[Candidate], GiveUp]
"""Returns what a candidate's probe compares it with, to stop early."""
FirstFree = Callable[[Sequence[Placement]], Taken | None]
"""Takes the first placement whose devices are free; None if all stay busy."""


@dataclass(frozen=True, slots=True)
class ProbeCallbacks:
    """Functions that the probes call with their results."""

    on_measurement: Callable[[Measurement], None]
    on_launch: Callable[[Launch], None]
    give_up: GiveUpRule | None = None
    """None to stop no probe early."""
    log: Callable[[str], None] = lambda _: None
    """Gets sentences for the user, such as what is waited for."""
    first_free: FirstFree = Unqueued().take
    """Selects the placement to probe next."""


def measure(
    spec: JobSpec,
    candidates: Sequence[Candidate],
    storage: Path,
    callbacks: ProbeCallbacks,
    *,
    is_brief: bool = False,
    rounds: int = ROUNDS_WITHOUT_RESULT,
    workers: KeptWorkers | None = None,
    is_fresh: bool = False,
) -> None:
    """Probe candidates with one Tune trial, and thus one worker group, for each placement.

    Probes follow the given order, except that placements with free devices go first; placements
    that stay busy are left out. A group ends when it runs out of memory or loses a worker; new
    groups probe its remaining candidates. With `is_brief` only steps are timed. `workers` are those
    of the run, which stay; without them, or with `is_fresh`, the probes start others.

    Raises:
        TrainingError: if a round without results has a permanent failure, or after
            `rounds` of them.
    """
    with _kept(spec, storage, workers, callbacks) as kept:
        stage = _Stage(spec, storage, callbacks, kept, is_brief=is_brief, is_fresh=is_fresh)
        _measure(stage, candidates, rounds)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What all rounds of probes share."""

    spec: JobSpec
    storage: Path
    callbacks: ProbeCallbacks
    workers: KeptWorkers
    is_brief: bool
    is_fresh: bool


@contextlib.contextmanager
def _kept(
    spec: JobSpec, storage: Path, workers: KeptWorkers | None, callbacks: ProbeCallbacks
) -> Iterator[KeptWorkers]:
    """Yields the run's workers, or others that end with the block; tells what starting took."""
    kept = workers or Workers(secrets_of(spec), storage, spec.wait.timeout.total_seconds())
    try:
        yield kept
    finally:
        if workers is None:
            kept.close()
        _tell_launches(kept, callbacks)


def _tell_launches(workers: KeptWorkers, callbacks: ProbeCallbacks) -> None:
    for launch in workers.launches():
        callbacks.on_launch(launch)


def _measure(stage: _Stage, candidates: Sequence[Candidate], rounds: int) -> None:
    left, empty_rounds = {candidate.id: candidate for candidate in candidates}, 0
    while left:
        done, busy, problems = _probe_round(stage, list(left.values()))
        empty_rounds = 0 if done or busy else empty_rounds + 1
        lasting = [problem for problem in problems if not may_pass(problem.cause)]
        if empty_rounds and (lasting or empty_rounds == rounds):
            text = f"the probes of {', '.join(left)} have no result"
            raise TrainingError((lasting or problems)[0].message if problems else text)
        left = {
            name: candidate
            for name, candidate in left.items()
            if name not in done and candidate.placement not in busy
        }


def environment_of(placement: Placement) -> dict[str, str]:
    """Returns versions and hardware of a placement's first node, without reserving its devices.

    Returns an empty dict if the node does not answer in time.
    """
    node = {labels.NODE_ID: placement.node_ids[0]}
    task = ray.remote(num_cpus=0)(environment.describe).options(label_selector=node)
    try:
        return dict(ray.get(task.remote(placement.device), timeout=ENVIRONMENT_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError:
        return {}  # which equals no stored environment, so no measurement is reused


def _probe_round(
    stage: _Stage, candidates: Sequence[Candidate]
) -> tuple[set[str], list[Placement], list[Failed]]:
    """Probe each placement once.

    Returns the ids of candidates with a result, the placements that stayed busy, and the failures.
    """
    spec, callbacks = stage.spec, stage.callbacks
    done: set[str] = set()
    problems: list[Failed] = []

    def on_report(_: str, report: dict[str, Any]) -> None:
        _tell_launches(stage.workers, callbacks)
        if "failure" in report:
            problems.append(Failed(Cause(report["cause"]), report["failure"]))
        elif "remark" in report:
            callbacks.log(report["remark"])
        elif "busy" in report and spec.wait.then == "next_best":
            search.busy.append(placements[report["busy"]])
        elif "busy" in report:
            problems.append(Failed(Cause.INPUT, report["message"]))
        else:
            measured = MEASUREMENT.validate_python(report["measurement"])
            done.add(measured.candidate)
            callbacks.on_measurement(measured)

    placements = list(dict.fromkeys(candidate.placement for candidate in candidates))
    groups = [[c for c in candidates if c.placement == place] for place in placements]
    requests = [[_request(stage, candidate) for candidate in group] for group in groups]
    driver = ray.tune.with_parameters(
        drive_probes,
        line=stage.workers.line,
        groups=[bytes(ray.cloudpickle.dumps(each)) for each in requests],
        silences=[max(request.timing.silence_s for request in each) for each in requests],
    )
    search, reports = _InOrder(groups, stage), tuning.Reports(on_report)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, tuning.HEAD_ONLY),
        tune_config=ray.tune.TuneConfig(
            search_alg=search,
            num_samples=len(groups),
            # one placement at a time: probes on one machine would slow each other down
            max_concurrent_trials=1,
        ),
        run_config=tuning.run_config(f"speed-{time.time_ns():x}", stage.storage, reports),
    )
    tuner.fit()
    problems += [Failed(Cause.LOST_WORKER, text) for _, text in reports.crashed]
    return done, search.busy, problems


class _InOrder(ray.tune.search.Searcher):  # type: ignore[misc]
    """Suggests free placements in order, with the rules by which their probes stop early."""

    def __init__(self, groups: list[list[Candidate]], stage: _Stage) -> None:
        super().__init__()
        self._left = {group[0].placement: (n, group) for n, group in enumerate(groups)}
        self._callbacks, self._stage = stage.callbacks, stage
        self.busy: list[Placement] = []
        """Placements whose devices stayed busy."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles searchers for restoring an experiment, which Winnow never does

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Returns the index of the next placement, and by candidate when its probe stops early."""
        taken = self._callbacks.first_free(list(self._left)) if self._left else None
        if taken is None:
            self.busy += self._left
            return str(self.FINISHED)
        placement = taken.option
        number, group = self._left.pop(placement)
        workers = self._stage.workers
        is_warm = workers.serves(taken.placement) and not self._stage.is_fresh
        text = "the workers run already" if is_warm else "starting workers"
        self._callbacks.log(f"{placement.name}: {text}; candidates to probe: {len(group)}")
        workers.on(taken.placement, is_fresh=self._stage.is_fresh)  # while Tune starts the driver
        rule = self._callbacks.give_up
        rules = {candidate.id: rule(candidate) for candidate in group} if rule else {}
        return {"placement": number, "give_up": rules}

    def on_trial_complete(self, trial_id: str, *_: Any, **__: Any) -> None:
        """Do nothing: the order does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a resumed sweep starts a new search over the candidates that are left."""


def _request(stage: _Stage, candidate: Candidate) -> ProbeRequest:
    return ProbeRequest(
        candidate=candidate.id,
        config=training_config(stage.spec, candidate.execution, {}),
        timing=probe_timing(stage.spec, candidate.execution),
        scratch=stage.storage / "probe" / "checkpoints",
        is_brief=stage.is_brief,
    )
