"""The speed stage: short probes of every candidate on Ray Tune."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray.tune
from pydantic import TypeAdapter

from cluster.placement import Placement
from jobs.errors import TrainingError, WinnowError
from jobs.spec import JobSpec
from jobs.spec.sweep import ProbeSpec
from jobs.training.events import OutOfMemory, Probed
from jobs.training.probe import ProbeRequest, probe_all
from orchestrator.decisions import predict
from orchestrator.decisions.plan import Candidate
from orchestrator.decisions.predict import Measurement
from orchestrator.decisions.resolve import training_config
from orchestrator.stages import tuning
from orchestrator.stages.group import stream

MEASUREMENT = TypeAdapter(Measurement)


def measure(
    spec: JobSpec,
    candidates: Sequence[Candidate],
    storage: Path,
    on_measurement: Callable[[Measurement], None],
) -> None:
    """Probe candidates with one Tune trial, and so one worker group, for each placement.

    Running out of memory ends a group; what it left is probed by fresh groups. Raises TrainingError
    when a round brings no result.
    """
    left = {candidate.id: candidate for candidate in candidates}
    while left:
        found = _probe_round(spec, list(left.values()), storage, on_measurement)
        if not found:
            raise TrainingError(f"the probes of {', '.join(left)} came to no result")
        left = {name: candidate for name, candidate in left.items() if name not in found}


def _probe_round(
    spec: JobSpec,
    candidates: Sequence[Candidate],
    storage: Path,
    on_measurement: Callable[[Measurement], None],
) -> set[str]:
    found: set[str] = set()
    failures: list[str] = []

    def take(_: str, report: dict[str, Any]) -> None:
        if "failure" in report:
            failures.append(report["failure"])
            return
        measured = MEASUREMENT.validate_python(report["measurement"])
        found.add(measured.candidate)
        on_measurement(measured)

    placements = list(dict.fromkeys(candidate.placement for candidate in candidates))
    groups = [_requests(spec, [c for c in candidates if c.placement == p]) for p in placements]
    driver = ray.tune.with_parameters(_drive, placements=placements, groups=groups, storage=storage)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(driver, tuning.HEAD_ONLY),
        param_space={"placement": ray.tune.grid_search(list(range(len(placements))))},
        # one placement at a time: neighbours on one machine would slow each other's probes
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=1),
        run_config=tuning.run_config(
            f"speed-{time.time_ns():x}",
            storage,
            tuning.Reports(take),
        ),
    )
    failures += tuning.crashes(tuner.fit())
    if failures and not found:
        raise TrainingError(failures[0])
    return found


def _requests(spec: JobSpec, candidates: Sequence[Candidate]) -> list[ProbeRequest]:
    timing = spec.sweep.probe if spec.sweep else ProbeSpec()
    return [
        ProbeRequest(
            candidate=candidate.id,
            config=training_config(spec, candidate.execution, {}),
            warmup_s=timing.warmup.total_seconds(),
            duration_s=timing.duration.total_seconds(),
        )
        for candidate in candidates
    ]


def _drive(config: dict[str, Any], **fixed: Any) -> None:
    try:
        _probe(config, **fixed)
    except WinnowError as error:
        ray.tune.report({"failure": str(error)})


def _probe(
    config: dict[str, Any],
    *,
    placements: list[Placement],
    groups: list[list[ProbeRequest]],
    storage: Path,
) -> None:
    placement, requests = placements[config["placement"]], groups[config["placement"]]
    launched = time.monotonic()
    start_s: list[float] = []

    # a group even for one worker, because the full run will have to start one too
    events = stream(probe_all, requests, placement, name="probe", storage=storage)
    with contextlib.closing(events):
        for event in events:
            if isinstance(event, Probed | OutOfMemory):
                spent = event.setup_s + event.probe_s if isinstance(event, Probed) else 0.0
                start_s.append(max(0.0, time.monotonic() - launched - spent))
                measured = predict.summarise(event, start_s[0])
                ray.tune.report({"measurement": dataclasses.asdict(measured)})
