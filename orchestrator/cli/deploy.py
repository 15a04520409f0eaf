"""`winnow deploy`: put a published version behind its endpoint."""

from typing import Annotated

import typer

from jobs.spec import JobSpec
from orchestrator import api
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
from orchestrator.loading import load_served
from serve.deploy.endpoint import Endpoint

PRINTS = {"deploy": Endpoint}
"""What each command prints with --json."""


def deploy(
    job: JobFile,
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    settings: Settings = None,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Deploy a published version of the job's model as the serve section says."""
    spec, _ = load_served(job, settings, "deploy")
    deploy_job(spec, version, address, insecure_local=insecure_local, as_json=as_json)


def deploy_job(
    spec: JobSpec, version: str | None, address: str | None, *, insecure_local: bool, as_json: bool
) -> None:
    """Deploy a version as the job's serve section says, and print where it answers."""
    with results_only(), Console(quiet=as_json) as console:
        endpoint = api.deploy(
            spec, version, address=address, insecure_local=insecure_local, notify=console
        )
    if as_json:
        print_json(endpoint, PRINTS["deploy"])
    else:
        from serve.tasks.registry import endpoint_of  # imports FastAPI, which takes time

        path = endpoint_of(spec.model.task).path
        out().print(f"{endpoint.url}{path} answers with version {endpoint.version}")
        if endpoint.grpc:
            name = endpoint.application
            out().print(f"gRPC answers at {endpoint.grpc}, to calls with application: {name}")
