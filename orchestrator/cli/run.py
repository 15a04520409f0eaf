"""`winnow run`, `winnow sweep` and `winnow train`: the pipeline, or parts of it."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from jobs.spec import JobSpec
from orchestrator import api, interruption
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    JobFile,
    Settings,
    out,
    print_json,
    results_only,
)
from orchestrator.console import Console
from orchestrator.execution import training_alone
from orchestrator.loading import load_job, storage_of
from orchestrator.notices import Remark
from orchestrator.records import receipt_text, report, runs
from orchestrator.records.outcome import Outcome

Value = TypeVar("Value")
EXAMPLE_TOKENS = 64
"""Most tokens of the answer to the request that is shown as an example."""
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
    outcome = _call(
        "run",
        api.run,
        spec,
        job,
        quiet=as_json,
        resume=resume,
        or_new=or_new,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
    )
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
    found = _call(
        "sweep",
        api.sweep,
        spec,
        job,
        quiet=as_json,
        resume=resume,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
    )
    if as_json:
        print_json(found.winner)
        return
    run = runs.find(storage_of(spec), found.run)
    winner = run.local_copy(runs.WINNER)
    out().print(f"winner: {found.winner} ({found.winner.reason})")
    out().print(f"run it: winnow run {winner}\nreport: {run.url}/{report.PAGE}", markup=False)


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
    spec = training_alone(load_job(job, settings))
    outcome = _call(
        "train",
        api.run,
        spec,
        job,
        quiet=as_json,
        resume=resume,
        accept_changes=accept_changes,
        address=address,
        insecure_local=insecure_local,
    )
    print_json(outcome) if as_json else show(outcome)


def _call(
    command: str,
    function: Callable[..., Value],
    spec: JobSpec,
    job: Path,
    *,
    quiet: bool,
    **options: Any,
) -> Value:
    """Call a function of the API with a console on stderr.

    After an interruption the console shows the command that goes on with the run.
    """
    with results_only(), Console(quiet=quiet) as console:
        try:
            return function(spec, notify=console, **options)
        except BaseException as error:
            if interruption.kind_of(error):
                again = f"winnow {command} {shlex.quote(str(job))} --resume"
                console(Remark(f"stopped; go on with the same options and --resume: {again}"))
            raise


def show(outcome: Outcome) -> None:
    """Print the receipt, the endpoint and where the report is."""
    console = out()
    console.print(f"\n{receipt_text.receipt_text(outcome.receipt)}\n", markup=False)
    console.print(f"model     {outcome.model.path}\nreport    {outcome.report}", markup=False)
    if outcome.endpoint:
        from serve.tasks.registry import endpoint_of  # imports FastAPI, which takes time

        model, endpoint = outcome.model, endpoint_of(outcome.model.task)
        kind = {"is_pair": model.is_pair}
        (body,) = endpoint.bodies(["a fine film"], kind, per_request=1, tokens=EXAMPLE_TOKENS)
        url, docs = f"{outcome.endpoint.url}{endpoint.path}", f"{outcome.endpoint.url}/docs"
        console.print(f"endpoint  {url}  (docs: {docs})", markup=False)
        console.print(
            f"try it    curl -s {url} -H 'content-type: application/json' -d '{json.dumps(body)}'",
            markup=False,
        )
        console.print(f"stop it   winnow undeploy {model.name}", markup=False)
