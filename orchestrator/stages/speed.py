"""The speed stage: short probes of every candidate on Ray Tune."""

import contextlib
import dataclasses
import math
import operator
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
from orchestrator.decisions import predict
from orchestrator.decisions.plan import Candidate
from orchestrator.decisions.predict import Launch, Measurement
from orchestrator.decisions.recovery import Cause, Failed, may_pass
from orchestrator.decisions.resolve import probe_timing, training_config
from orchestrator.stages import causes, tuning
from orchestrator.stages.group import Patience, Start, Work, stream
from orchestrator.stages.secrets import secrets_of

FRUITLESS_ROUNDS = 3
"""How often probes are begun that bring nothing, where that may pass."""
GROUND_TIMEOUT_S = 60.0
"""How long a node may take to import torch and describe itself."""

MEASUREMENT = TypeAdapter(Measurement)
LAUNCH = TypeAdapter(Launch)

GiveUp = Callable[[Candidate], float | None]
"""Mean step time from which on a candidate is not worth timing; None when nothing is known."""
FirstFree = Callable[[Sequence[Placement]], Placement | None]
"""The first of some placements that has its devices; None when all stay busy."""


@dataclass(frozen=True, slots=True)
class ProbeCallbacks:
    """Takes what the probes find, as it comes."""

    on_measurement: Callable[[Measurement], None]
    on_launch: Callable[[Launch], None]
    give_up_s: GiveUp | None = None
    """None to carry every probe through."""
    tell: Callable[[str], None] = lambda _: None
    """Told what is waited for."""
    first_free: FirstFree = operator.itemgetter(0)
    """Which of some placements to probe next; None when their devices stay busy."""


def measure(
    spec: JobSpec, candidates: Sequence[Candidate], storage: Path, findings: ProbeCallbacks
) -> None:
    """Probe candidates with one Tune trial, and so one worker group, for each placement.

    Placements and candidates are probed in the order given, those first whose devices are free;
    placements that stay busy are left out. Running out of memory ends a group; what it left is
    probed by fresh groups, as is what a lost worker or node ended. Raises TrainingError when
    FRUITLESS_ROUNDS bring no result, or one for a reason that stays.
    """
    left, fruitless = {candidate.id: candidate for candidate in candidates}, 0
    while left:
        found, busy, failures = _probe_round(spec, list(left.values()), storage, findings)
        fruitless = 0 if found or busy else fruitless + 1
        lasting = [failure for failure in failures if not may_pass(failure.cause)]
        if fruitless and (lasting or fruitless == FRUITLESS_ROUNDS):
            text = f"the probes of {', '.join(left)} came to no result"
            raise TrainingError((lasting or failures)[0].message if failures else text)
        left = {
            name: candidate
            for name, candidate in left.items()
            if name not in found and candidate.placement not in busy
        }


def ground_of(placement: Placement) -> dict[str, str]:
    """Versions and hardware of a placement's first node, without holding its devices."""
    node = {labels.NODE_ID: placement.node_ids[0]}
    task = ray.remote(num_cpus=0)(environment.describe).options(label_selector=node)
    try:
        return dict(ray.get(task.remote(placement.device), timeout=GROUND_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError:
        return {}  # nothing is taken over from a node that does not answer


def measure_again(
    spec: JobSpec, candidates: Sequence[Candidate], storage: Path, findings: ProbeCallbacks
) -> None:
    """Probe in fresh processes started from here, as the full run will be: no Tune between."""
    work = secrets_of(spec).given_to(probe_all)
    patience = Patience(spec.wait.timeout.total_seconds(), findings.tell)
    for placement in dict.fromkeys(candidate.placement for candidate in candidates):
        group = [
            dataclasses.replace(_request(spec, c, storage), is_brief=True, give_up_s=math.inf)
            for c in candidates
            if c.placement == placement
        ]
        for found in _stream(work, group, placement, storage, patience, nested=False):
            if isinstance(found, Launch):
                findings.on_launch(found)
            else:
                findings.on_measurement(found)


def _probe_round(
    spec: JobSpec, candidates: Sequence[Candidate], storage: Path, findings: ProbeCallbacks
) -> tuple[set[str], list[Placement], list[Failed]]:
    """Ids that came to a result, placements whose devices stayed busy, and what failed."""
    found: set[str] = set()
    failures: list[Failed] = []

    def take(_: str, report: dict[str, Any]) -> None:
        if "failure" in report:
            failures.append(Failed(Cause(report["cause"]), report["failure"]))
        elif "remark" in report:
            findings.tell(report["remark"])
        elif "busy" in report and spec.wait.then == "next_best":
            search.busy.append(placements[report["busy"]])
        elif "busy" in report:
            failures.append(Failed(Cause.INPUT, report["words"]))
        elif "launch" in report:
            findings.on_launch(LAUNCH.validate_python(report["launch"]))
        else:
            measured = MEASUREMENT.validate_python(report["measurement"])
            found.add(measured.candidate)
            findings.on_measurement(measured)

    placements = list(dict.fromkeys(candidate.placement for candidate in candidates))
    groups = [[c for c in candidates if c.placement == place] for place in placements]
    requests = [[_request(spec, c, storage) for c in group] for group in groups]
    driver = ray.tune.with_parameters(
        _drive,
        work=secrets_of(spec).given_to(probe_all),
        placements=placements,
        groups=requests,
        storage=storage,
        wait_s=spec.wait.timeout.total_seconds(),
    )
    search, reports = _OneByOne(groups, findings), tuning.Reports(take)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, tuning.HEAD_ONLY),
        tune_config=ray.tune.TuneConfig(
            search_alg=search,
            num_samples=len(groups),
            # one placement at a time: neighbours on one machine would slow each other's probes
            max_concurrent_trials=1,
        ),
        run_config=tuning.run_config(f"speed-{time.time_ns():x}", storage, reports),
    )
    tuner.fit()
    failures += [Failed(Cause.LOST_WORKER, text) for _, text in reports.crashed]
    return found, search.busy, failures


class _OneByOne(ray.tune.search.Searcher):  # type: ignore[misc]
    """Hands out placements in order, each with what is known by then to be too slow."""

    def __init__(self, groups: list[list[Candidate]], findings: ProbeCallbacks) -> None:
        super().__init__()
        self._left = {group[0].placement: (n, group) for n, group in enumerate(groups)}
        self._findings = findings
        self.busy: list[Placement] = []
        """What is left because its devices stayed busy."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune saves its search for a restore that Winnow never does

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next placement's number, and step times to give up at by candidate."""
        placement = self._findings.first_free(list(self._left)) if self._left else None
        if placement is None:
            self.busy += self._left
            return str(self.FINISHED)
        number, group = self._left.pop(placement)
        limit = self._findings.give_up_s or (lambda _: math.inf)
        limits = {candidate.id: limit(candidate) for candidate in group}
        return {"placement": number, "give_up_s": limits}

    def on_trial_complete(self, trial_id: str, *_: Any, **__: Any) -> None:
        """Nothing is learnt from a trial's last report."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: a resumed sweep starts a new search over what is left."""


def _request(spec: JobSpec, candidate: Candidate, storage: Path) -> ProbeRequest:
    return ProbeRequest(
        candidate=candidate.id,
        config=training_config(spec, candidate.execution, {}),
        timing=probe_timing(spec, candidate.execution.device),
        scratch=storage / "probe" / "checkpoints",
    )


def _drive(config: dict[str, Any], **fixed: Any) -> None:
    try:
        _probe(config, **fixed)
    except causes.BusyError as error:
        ray.tune.report({"busy": config["placement"], "words": str(error)})
    except WinnowError as error:
        ray.tune.report({"failure": str(error), "cause": causes.of_worker(error)})


def _probe(
    config: dict[str, Any],
    *,
    work: Work,
    placements: list[Placement],
    groups: list[list[ProbeRequest]],
    storage: Path,
    wait_s: float,
) -> None:
    placement, limits = placements[config["placement"]], config["give_up_s"]
    patience = Patience(wait_s, lambda text: ray.tune.report({"remark": text}))
    requests = [
        dataclasses.replace(request, give_up_s=limits[request.candidate])
        for request in groups[config["placement"]]
    ]
    for found in _stream(work, requests, placement, storage, patience):
        name = "launch" if isinstance(found, Launch) else "measurement"
        ray.tune.report({name: dataclasses.asdict(found)})


def _stream(
    work: Work,
    requests: Sequence[ProbeRequest],
    placement: Placement,
    storage: Path,
    patience: Patience,
    *,
    nested: bool = True,
) -> Iterator[Measurement | Launch]:
    """What one group finds. A group even for one worker, because the full run starts one too."""
    launched = last = time.monotonic()
    start_s: float | None = None
    events = stream(Start(work, requests, placement, "probe", storage), patience)
    with contextlib.closing(events):
        for event in events:
            last = time.monotonic()
            if isinstance(event, WorkersReady):
                start_s = last - launched - patience.waited_s
            if isinstance(event, Probed | OutOfMemory):
                yield predict.summarise(event)
    if start_s is not None:
        yield Launch(placement.name, start_s, time.monotonic() - last, nested=nested)
