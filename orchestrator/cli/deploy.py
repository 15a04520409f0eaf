"""`winnow deploy`: put a published version behind its endpoint."""

import functools
from typing import Annotated

import typer

from cluster import session
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    JobFile,
    Settings,
    load_served,
    out,
    print_json,
    quiet_libraries,
    results_only,
    storage_of,
)
from orchestrator.records import registry


def deploy(
    job: JobFile,
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    settings: Settings = None,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Deploy a published version of the job's model as the serve section says."""
    spec, serving = load_served(job, settings, "deploy")
    model = registry.read(storage_of(spec), spec.name, version)
    quiet_libraries()
    with results_only(), session.connect(address=address, insecure_local=insecure_local) as cluster:
        from cluster import discovery
        from serve.deploy import deployment

        nodes = discovery.discover()
        endpoint = deployment.deploy(
            model,
            serving,
            nodes,
            port=cluster.serve_port,
            find_version=functools.partial(registry.read, storage_of(spec)),
            log=lambda text: out().print(text, markup=False),
        )
        registry.note_deployed(storage_of(spec), model)
    if as_json:
        print_json(endpoint)
    else:
        out().print(f"{endpoint.url}/predict answers with version {endpoint.version}")
        if endpoint.grpc:
            name = endpoint.application
            out().print(f"gRPC answers at {endpoint.grpc}, to calls with application: {name}")
