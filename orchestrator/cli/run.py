"""`winnow run`, `winnow sweep` and `winnow train`: the pipeline, or parts of it."""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster import session
from jobs.errors import WinnowError
from jobs.spec import JobSpec
from orchestrator import interruption
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    JobFile,
    Settings,
    load_job,
    out,
    print_json,
    quiet_libraries,
    results_only,
    storage_of,
)
from orchestrator.console import Console
from orchestrator.interruption import interrupt
from orchestrator.notices import Remark
from orchestrator.records import inputs, lease, runs

if TYPE_CHECKING:
    from orchestrator.context import Context
    from orchestrator.pipeline import Outcome

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the newest run of this job.")]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="With --resume: go on with changed data, base model or code."
    ),
]
OrNew = Annotated[
    bool, typer.Option("--or-new", help="With --resume: start a run where there is none.")
]


def run(
    job: JobFile,
    settings: Settings = None,
    resume: Resume = False,
    or_new: OrNew = False,
    accept_changes: AcceptChanges = False,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Sweep, train, publish and deploy what the job file asks for."""
    spec = load_job(job, settings)
    with started(
        spec,
        job,
        resume=resume,
        or_new=or_new,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
        quiet=as_json,
    ) as context:
        from orchestrator import pipeline

        outcome = pipeline.run(context)
    print_json(outcome) if as_json else show(outcome)


def sweep(
    job: JobFile,
    settings: Settings = None,
    resume: Resume = False,
    accept_changes: AcceptChanges = False,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Probe and try candidates, choose a winner, and stop before training it in full."""
    spec = load_job(job, settings)
    with started(
        spec,
        job,
        resume=resume,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
        quiet=as_json,
    ) as context:
        from orchestrator import pipeline
        from orchestrator import sweep as sweeping

        _, found, page = pipeline.sweep_only(context)
        winner = context.run.local_copy(sweeping.WINNER)
    if as_json:
        print_json(found.winner)
        return
    out().print(f"winner: {sweeping.describe(found.winner)} ({found.winner.reason})")
    out().print(f"run it: winnow run {winner}\nreport: {page}", markup=False)


def train(
    job: JobFile,
    settings: Settings = None,
    resume: Resume = False,
    accept_changes: AcceptChanges = False,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Train and publish as the train section says, without a sweep and without an endpoint."""
    spec = load_job(job, settings).model_copy(update={"sweep": None, "serve": None})
    with started(
        spec,
        job,
        resume=resume,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
        quiet=as_json,
    ) as context:
        from orchestrator import pipeline

        outcome = pipeline.run(context)
    print_json(outcome) if as_json else show(outcome)


@contextlib.contextmanager
def started(
    spec: JobSpec,
    job: Path,
    *,
    resume: bool,
    or_new: bool = False,
    accept_changes: bool = False,
    address: str | None,
    insecure_local: bool,
    quiet: bool,
) -> Iterator["Context"]:
    """A run of a job on a cluster, made or found, and nobody else's; interruptions are journaled.

    Raises RunError where another process runs the same job, ClusterError for an open cluster.
    """
    quiet_libraries()
    storage = storage_of(spec)
    key = f"leases/{spec.name}-{runs.digest(spec)[:12]}"
    with (
        results_only(),
        Console(quiet=quiet) as console,
        lease.held(
            storage.objects, key, f"job {spec.name}", lambda text: console(Remark(text))
        ) as owned,
    ):
        found = inputs.find_or_create(
            storage, spec, resume=resume, or_new=or_new, accepts_changes=accept_changes
        )
        run = replace(found, check=owned.check)
        run.note("owned", epoch=str(owned.epoch))
        console(Remark(f"run {run.id} in {run.url}"))
        with (
            _journaled(run, job, console),
            session.connect(address=address, insecure_local=insecure_local) as cluster,
        ):
            from orchestrator.context import Context

            signal.signal(signal.SIGTERM, interrupt)  # ray.init replaces handlers
            console(Remark(f"cluster {cluster.address}"))
            yield Context(
                spec, run, storage, console, cluster.serve_port, accepts_changes=accept_changes
            )


@contextlib.contextmanager
def _journaled(run: runs.Run, job: Path, console: Console) -> Iterator[None]:
    """Note in the run's journal how it ended, if not well."""
    try:
        yield
    except BaseException as error:
        is_interrupted = interruption.kind_of(error) is not None
        with contextlib.suppress(WinnowError):  # the storage may be what failed
            if is_interrupted:
                run.note("interrupted")
            elif isinstance(error, Exception):
                run.note("failed", error=str(error))
        if is_interrupted:
            command = f"winnow run {job} --resume"
            console(Remark(f"stopped; go on with the same options and --resume: {command}"))
        raise


def show(outcome: "Outcome") -> None:
    """Print the receipt, the endpoint and where the report is."""
    from orchestrator.records.receipt_text import receipt_text

    console = out()
    console.print(f"\n{receipt_text(outcome.receipt)}\n", markup=False)
    console.print(f"model     {outcome.model.path}\nreport    {outcome.report}", markup=False)
    if outcome.endpoint:
        url, body = outcome.endpoint.url, '{"inputs": "a fine film"}'
        console.print(f"endpoint  {url}/predict  (docs: {url}/docs)", markup=False)
        console.print(
            f"try it    curl -s {url}/predict -H 'content-type: application/json' -d '{body}'",
            markup=False,
        )
        console.print("stop it   winnow down")
