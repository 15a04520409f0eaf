"""The harness stage: one worker judges the exported model, after temporary failures again."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import placement as placing
from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.spec import JobSpec
from jobs.spec.harness import HarnessSpec
from jobs.storage import manifest
from jobs.training import checkpoint, harness
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import Device
from jobs.training.events import CheckpointRef, Report
from jobs.training.harness import HarnessProgress, HarnessResult
from orchestrator.decisions import recovery
from orchestrator.decisions.leases import Devices
from orchestrator.decisions.recovery import Failed, GiveUp
from orchestrator.stages.elastic import wait_for_devices
from orchestrator.stages.failures import GroupError
from orchestrator.stages.group import DeviceWait, Start, stream
from orchestrator.stages.secrets import secrets_of


@dataclass(frozen=True, slots=True)
class HarnessPayload:
    """Arguments of the worker."""

    spec: HarnessSpec
    checkpoint: CheckpointRef
    checkpoints: CheckpointStore
    device: Device
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class Judging:
    """The job, the model that is judged, and the devices to do it with."""

    spec: JobSpec
    checkpoint: CheckpointRef
    checkpoints: CheckpointStore
    placement: Placement
    """That of the fit; one of its devices is used, and the others are given back."""
    devices: Devices
    limit_s: float | None
    """Longest duration of the harness in seconds."""


def evaluate(
    judging: Judging, on_progress: Callable[[HarnessProgress], None], log: Callable[[str], None]
) -> HarnessResult:
    """Run the job's harness on one device.

    Raises:
        TrainingError: if its worker fails for good.
        ClusterError: if the device is not free within the job's timeout.
    """
    failures, avoid = list[Failed](), frozenset[str]()
    while True:
        try:
            return _attempt(judging, avoid, on_progress, log)
        except GroupError as error:
            failures.append(error.failed)
            decision = recovery.decide(failures, judging.spec.train.retry, can_shrink=False)
            if isinstance(decision, GiveUp):
                raise TrainingError(error.failed.message) from None
            log(f"{error.failed.message}: the harness begins again")
            time.sleep(decision.pause_s)
            avoid = decision.avoid


def _attempt(
    judging: Judging,
    avoid: frozenset[str],
    on_progress: Callable[[HarnessProgress], None],
    log: Callable[[str], None],
) -> HarnessResult:
    spec = judging.spec
    assert spec.train.eval.harness is not None
    one = placing.resized(judging.placement, 1)
    place = wait_for_devices(one, (), avoid, spec.wait, judging.devices, regains=False)
    begin = time.monotonic()
    payload = HarnessPayload(
        spec.train.eval.harness,
        judging.checkpoint,
        judging.checkpoints,
        place.device,
        judging.limit_s,
    )
    start = Start(
        secrets_of(spec).bound_to(work),
        payload,
        place,
        name="harness",
        storage=judging.checkpoints.folder.parent,
        silence_s=spec.train.hang_after.total_seconds(),
    )
    device_wait = DeviceWait(spec.wait.timeout.total_seconds(), log)
    events = stream(start, device_wait)
    found: HarnessResult | None = None
    with contextlib.closing(events):
        for event in events:
            if isinstance(event, HarnessProgress):
                on_progress(event)
            elif isinstance(event, HarnessResult):
                found = event
    if found is None:
        raise TrainingError("the worker of the harness ended without a result")
    return replace(found, seconds=time.monotonic() - begin - device_wait.waited_s)


def work(payload: HarnessPayload, report: Report) -> None:
    """Judge the exported model of the checkpoint in the worker."""
    here = checkpoint.download(payload.checkpoint, payload.checkpoints)
    folder = Path(here.path) / manifest.MODEL_DIR
    report(harness.evaluate(payload.spec, folder, payload.device, payload.limit_s, report))
