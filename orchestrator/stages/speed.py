"""The speed stage: measures every candidate with a short probe on Ray Tune."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.tune
import ray.tune.search
from pydantic import TypeAdapter

from cluster import labels
from cluster.placement import Placement
from jobs.errors import TrainingError, WinnowError
from jobs.spec import JobSpec
from jobs.training.events import OutOfMemory, Probed, WorkersReady
from jobs.training.probing import environment
from jobs.training.probing.probe import ProbeRequest, probe_all
from jobs.training.probing.timing import GiveUp
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import Taken, Unqueued
from orchestrator.decisions.measurement import Launch, Measurement, summarise
from orchestrator.decisions.recovery import Cause, Failed, may_pass
from orchestrator.decisions.resolve import probe_timing, training_config
from orchestrator.stages import failures, tuning
from orchestrator.stages.group import DeviceWait, Start, Work, stream
from orchestrator.stages.secrets import secrets_of

ROUNDS_WITHOUT_RESULT = 3
"""Consecutive rounds of probes without any result after which the stage fails, by default."""
ENVIRONMENT_TIMEOUT_S = 60.0
"""How long a node may take to import torch and describe itself."""

MEASUREMENT = TypeAdapter(Measurement)
LAUNCH = TypeAdapter(Launch)

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
) -> None:
    """Probe candidates with one Tune trial, and thus one worker group, for each placement.

    Probes follow the given order, except that placements with free devices go first; placements
    that stay busy are left out. A group ends when it runs out of memory or loses a worker; new
    groups probe its remaining candidates. With `is_brief` only steps are timed.

    Raises:
        TrainingError: if a round without results has a permanent failure, or after
            `rounds` of them.
    """
    left, empty_rounds = {candidate.id: candidate for candidate in candidates}, 0
    while left:
        done, busy, problems = _probe_round(
            spec, list(left.values()), storage, callbacks, is_brief=is_brief
        )
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
    spec: JobSpec,
    candidates: Sequence[Candidate],
    storage: Path,
    callbacks: ProbeCallbacks,
    *,
    is_brief: bool,
) -> tuple[set[str], list[Placement], list[Failed]]:
    """Probe each placement once.

    Returns the ids of candidates with a result, the placements that stayed busy, and the failures.
    """
    done: set[str] = set()
    problems: list[Failed] = []

    def on_report(_: str, report: dict[str, Any]) -> None:
        if "failure" in report:
            problems.append(Failed(Cause(report["cause"]), report["failure"]))
        elif "remark" in report:
            callbacks.log(report["remark"])
        elif "busy" in report and spec.wait.then == "next_best":
            search.busy.append(placements[report["busy"]])
        elif "busy" in report:
            problems.append(Failed(Cause.INPUT, report["message"]))
        elif "launch" in report:
            callbacks.on_launch(LAUNCH.validate_python(report["launch"]))
        else:
            measured = MEASUREMENT.validate_python(report["measurement"])
            done.add(measured.candidate)
            callbacks.on_measurement(measured)

    placements = list(dict.fromkeys(candidate.placement for candidate in candidates))
    groups = [[c for c in candidates if c.placement == place] for place in placements]
    requests = [[_request(spec, c, storage, is_brief=is_brief) for c in group] for group in groups]
    driver = ray.tune.with_parameters(
        _drive,
        work=secrets_of(spec).bound_to(probe_all),
        groups=requests,
        storage=storage,
        wait_s=spec.wait.timeout.total_seconds(),
    )
    search, reports = _InOrder(groups, callbacks), tuning.Reports(on_report)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, tuning.HEAD_ONLY),
        tune_config=ray.tune.TuneConfig(
            search_alg=search,
            num_samples=len(groups),
            # one placement at a time: probes on one machine would slow each other down
            max_concurrent_trials=1,
        ),
        run_config=tuning.run_config(f"speed-{time.time_ns():x}", storage, reports),
    )
    tuner.fit()
    problems += [Failed(Cause.LOST_WORKER, text) for _, text in reports.crashed]
    return done, search.busy, problems


class _InOrder(ray.tune.search.Searcher):  # type: ignore[misc]
    """Suggests free placements in order, with the rules by which their probes stop early."""

    def __init__(self, groups: list[list[Candidate]], callbacks: ProbeCallbacks) -> None:
        super().__init__()
        self._left = {group[0].placement: (n, group) for n, group in enumerate(groups)}
        self._callbacks = callbacks
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
        text = f"starting workers; candidates to probe: {len(group)}"
        self._callbacks.log(f"{placement.name}: {text}")
        rule = self._callbacks.give_up
        rules = {candidate.id: rule(candidate) for candidate in group} if rule else {}
        return {"placement": number, "leased": taken.placement, "give_up": rules}

    def on_trial_complete(self, trial_id: str, *_: Any, **__: Any) -> None:
        """Do nothing: the order does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a resumed sweep starts a new search over the candidates that are left."""


def _request(spec: JobSpec, candidate: Candidate, storage: Path, *, is_brief: bool) -> ProbeRequest:
    return ProbeRequest(
        candidate=candidate.id,
        config=training_config(spec, candidate.execution, {}),
        timing=probe_timing(spec, candidate.execution),
        scratch=storage / "probe" / "checkpoints",
        is_brief=is_brief,
    )


def _drive(config: dict[str, Any], **fixed: Any) -> None:
    try:
        _probe(config, **fixed)
    except failures.BusyError as error:
        ray.tune.report({"busy": config["placement"], "message": str(error)})
    except WinnowError as error:
        ray.tune.report({"failure": str(error), "cause": failures.classify_worker_error(error)})


def _probe(
    config: dict[str, Any],
    *,
    work: Work,
    groups: list[list[ProbeRequest]],
    storage: Path,
    wait_s: float,
) -> None:
    placement, rules = config["leased"], config["give_up"]
    device_wait = DeviceWait(wait_s, lambda text: ray.tune.report({"remark": text}))
    requests = [
        dataclasses.replace(request, give_up=rules.get(request.candidate))
        for request in groups[config["placement"]]
    ]
    for result in _stream(work, requests, placement, storage, device_wait):
        name = "launch" if isinstance(result, Launch) else "measurement"
        ray.tune.report({name: dataclasses.asdict(result)})


def _stream(
    work: Work,
    requests: Sequence[ProbeRequest],
    placement: Placement,
    storage: Path,
    device_wait: DeviceWait,
) -> Iterator[Measurement | Launch]:
    """Yield the measurements of one worker group, and last its launch times.

    A single worker also runs in a group, because the full run starts one too.
    """
    launched = last = time.monotonic()
    start_s: float | None = None
    silence_s = max(request.timing.silence_s for request in requests)
    start = Start(work, requests, placement, "probe", storage, silence_s=silence_s)
    events = stream(start, device_wait)
    with contextlib.closing(events):
        for event in events:
            last = time.monotonic()
            if isinstance(event, WorkersReady):
                start_s = last - launched - device_wait.waited_s
            if isinstance(event, Probed | OutOfMemory):
                yield summarise(event)
    if start_s is not None:
        yield Launch(placement.name, start_s, time.monotonic() - last)
