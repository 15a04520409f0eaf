"""One execution of a job: its run, which nobody else may own meanwhile, and its cluster."""

import contextlib
import functools
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from cluster import session
from jobs.errors import RunError, WinnowError
from jobs.spec import JobSpec
from jobs.training.model import location
from orchestrator import interruption, notifications
from orchestrator.context import Context
from orchestrator.decisions.leases import Devices, KeptWorkers, Ticket
from orchestrator.loading import storage_of
from orchestrator.notices import Notify, Remark, StageFinished, StageStarted
from orchestrator.records import cancellation, inputs, lease, run_log, runs
from orchestrator.records.cancellation import Request
from orchestrator.records.owner import owner
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run


@dataclass(frozen=True, slots=True)
class Beginning:
    """Which run is gone on with, if any."""

    resume: bool = False
    """The newest run of the job."""
    run: str | None = None
    """This run, by id, of the job or of its training alone."""
    or_new: bool = False
    """With `resume`: a new run where there is none to go on with."""
    reads_inputs: bool = True
    """With `run`: whether data and base model are read again, and have to be as they were."""
    accept_changes: bool = False
    """Go on though data, base model or code changed since it began."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which cluster a job runs on."""

    address: str | None = None
    """None for the one in RAY_ADDRESS, else the local one, which is started if it is not up."""
    insecure_local: bool = False
    """Whether one of this machine may be open to whoever reaches it."""


@contextlib.contextmanager
def started(spec: JobSpec, beginning: Beginning, place: Place, notify: Notify) -> Iterator[Context]:
    """A run of a job on a cluster, made or found, and nobody else's; its end is journaled.

    Raises RunError where another process runs the same job, ClusterError for an open cluster.
    """
    with (
        owned(spec, beginning, notify) as run,
        run_log.kept(run, notify) as tell,
        notifications.sent(spec, run, tell) as tell,
        connected(place, tell, functools.partial(_load_training, spec, run)) as cluster,
    ):
        tell(StageStarted("plan", "loading torch, transformers and Ray's libraries"))
        with _queued(spec, run) as devices, _kept_workers(spec, run) as workers:
            yield Context(
                spec,
                run,
                run.storage,
                tell,
                cluster.serve_port,
                accepts_changes=beginning.accept_changes,
                devices=devices,
                workers=workers,
            )


@contextlib.contextmanager
def _queued(spec: JobSpec, run: Run) -> Iterator[Devices]:
    """A place in the cluster's queue for devices, left at the end."""
    from orchestrator.stages.queue_actor import LeasedDevices  # once Ray is connected

    created, by = run.created
    entered = datetime.fromisoformat(created).timestamp() if created else time.time()
    ticket = Ticket(run.id, spec.name, spec.owner or by or owner(), spec.priority, entered)
    devices = LeasedDevices(ticket)
    try:
        yield devices
    finally:
        devices.leave()


@contextlib.contextmanager
def _kept_workers(spec: JobSpec, run: Run) -> Iterator[KeptWorkers | None]:
    """The workers that the stages of a run give to each other, ended at the end.

    None if the job's secrets are not set, which the plan says in words.
    """
    from orchestrator.stages.secrets import secrets_of  # once Ray is connected
    from orchestrator.stages.workers import Workers

    workers = None
    with contextlib.suppress(RunError):
        wait_s = spec.wait.timeout.total_seconds()
        workers = Workers(secrets_of(spec), run.folder, wait_s)
    try:
        yield workers
    finally:
        if workers:
            workers.close()


@contextlib.contextmanager
def owned(spec: JobSpec, beginning: Beginning, notify: Notify) -> Iterator[Run]:
    """A run of a job, made or found, and nobody else's; its end is journaled.

    Raises RunError where another process runs the same job, or there is nothing to go on with.
    """
    storage = storage_of(spec)
    known = None if beginning.run is None else runs.find(storage, beginning.run)
    job = _job_of(known, spec) if known else spec
    notify(StageStarted("run", "reading data, base model and code, for their digests"))
    key = runs.lease_key(job)
    with lease.held(
        storage.objects, key, f"job {spec.name}", lambda text: notify(Remark(text))
    ) as held:
        if known is None:
            found = inputs.find_or_create(
                storage,
                spec,
                resume=beginning.resume,
                or_new=beginning.or_new,
                accepts_changes=beginning.accept_changes,
            )
        else:
            found = known
            if beginning.reads_inputs:
                inputs.go_on(known, spec, accepts_changes=beginning.accept_changes)
        run = replace(found, check=held.check)
        cancellation.withdraw(run)  # a request that ended the run before
        run.note("owned", epoch=str(held.epoch), lease=key)
        notify(StageFinished("run", f"{run.id} in {run.url}"))
        with _cancellable(run, notify), journaled(run):
            yield run


@contextlib.contextmanager
def _cancellable(run: Run, notify: Notify) -> Iterator[None]:
    """Inside the block, a request to end the run has the effect of SIGTERM.

    Outside the main thread, which alone handles signals, requests are not looked for.
    """

    def end(request: Request) -> bool:
        ended = interruption.terminate()
        if ended:
            notify(Remark(f"cancelled by {request.by}"))
        return ended

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with cancellation.watched(run, end):
        yield


@contextlib.contextmanager
def journaled(run: Run) -> Iterator[None]:
    """Note in the run's journal how it ended, if not well."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(WinnowError):  # the storage may be what failed
            if interruption.kind_of(error):
                request = cancellation.requested(run)
                run.note("interrupted", **({"by": request.by} if request else {}))
            elif isinstance(error, Exception):
                run.note("failed", error=str(error))
        raise


@contextlib.contextmanager
def connected(
    place: Place, notify: Notify, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[session.Connection]:
    """A connection of this process to a cluster; SIGTERM interrupts meanwhile, as Ctrl-C does.

    `meanwhile` is called in a thread while a local cluster starts.
    """
    quiet_libraries()

    def log(text: str) -> None:
        notify(StageStarted("cluster", text))

    with (
        interruption.handler_kept(),
        session.connect(
            address=place.address,
            insecure_local=place.insecure_local,
            log=log,
            meanwhile=meanwhile,
        ) as cluster,
    ):
        interruption.take_over()  # ray.init replaces handlers
        notify(StageFinished("cluster", cluster.address))
        yield cluster


def _load_training(spec: JobSpec, run: Run) -> None:
    """Import torch, transformers and Ray's libraries, which take as long as Ray's start.

    Then a base on the hub is fetched in a thread, for the workers that start later.
    """
    with contextlib.suppress(Exception):  # shown where it is imported or needed for use
        for module in ("jobs.training.session", "orchestrator.pipeline"):
            importlib.import_module(module)
        if run.read("fit", FitResult) is None:
            threading.Thread(target=_fetch, args=(spec.model.base,), daemon=True).start()


def _fetch(base: str) -> None:
    with contextlib.suppress(Exception):  # the plan and the workers tell what is wrong
        location.fetch_from_hub(base)


def training_alone(spec: JobSpec) -> JobSpec:
    """The job without a sweep and without an endpoint."""
    return spec.model_copy(update={"sweep": None, "serve": None})


def quiet_libraries() -> None:
    """Keep chatter of libraries off the terminal; their log files are not touched."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to handle
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _job_of(run: Run, spec: JobSpec) -> JobSpec:
    """The job that a run is of, or RunError where that is another, or was before it changed."""
    for job in (spec, training_alone(spec)):
        if runs.is_of(run, job):
            return job
    raise RunError(
        f"run {run.id} is not of job {spec.name} as it is now; pass the job that the run began"
        " with, or begin a new run"
    )
