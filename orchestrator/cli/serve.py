"""`winnow serve`: serves a published model on this machine without Ray."""

from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cluster import nvml
from cluster.access import LOOPBACK
from jobs.errors import DeployError, JobFileError
from jobs.loader.explain import explain
from jobs.loader.source import Document
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import open_storage
from orchestrator.cli.options import DEFAULT_STORAGE, StorageOption, out
from orchestrator.execution import quiet_libraries
from orchestrator.records import registry


def serve(
    model: Annotated[str, typer.Argument(help="Name of a published model.")],
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8080,
    threads: Annotated[int, typer.Option(help="Cores for the model.", min=1)] = 1,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Run the model on this machine's GPU.")
    ] = False,
    batch: Annotated[
        int, typer.Option(help="Largest batch of a forward pass, in texts.", min=1)
    ] = 64,
    engine: Annotated[str, typer.Option(help="Engine; auto measures and chooses.")] = "auto",
    fronts: Annotated[
        int | None,
        typer.Option(help="Processes that accept requests; chosen if left out.", min=0),
    ] = None,
    tokens_from: Annotated[
        str | None, typer.Option(help="Environment variable with the accepted bearer tokens.")
    ] = None,
) -> None:
    """Serve a published model here until interrupted: no cluster, no autoscaling."""
    spec = _checked(
        {
            "route": "/local",
            "accelerators": AcceleratorRequest("cpu", threads),
            "engine": engine,
            "batching": {"max_batch_size": batch},
            "fronts": "auto" if fronts is None else fronts,
            **({"auth": {"tokens_from": tokens_from}} if tokens_from else {}),
        }
    )
    if gpu and not nvml.count_gpus():
        raise DeployError("--gpu is set, but no driver reports a GPU here; leave it out")
    if host not in LOOPBACK and tokens_from is None:
        raise DeployError(
            f"--host {host} opens the endpoint to the network; name accepted tokens with"
            " --tokens-from, or listen on 127.0.0.1"
        )
    found = registry.read(open_storage(storage), model, version)
    quiet_libraries()
    from serve.config import configure
    from serve.http.auth import hashes_of
    from serve.tools import local

    config = configure(found, spec, "", is_gpu=gpu, token_hashes=hashes_of(spec))
    out().print(f"loading {found.name} {found.id} …", markup=False)
    local.run(config, host, port, lambda text: out().print(text, markup=False))


def _checked(values: dict[str, Any]) -> ServeSpec:
    """Returns the options as a serve section.

    Raises:
        JobFileError: if they are not valid.
    """
    try:
        return ServeSpec.model_validate(values)
    except ValidationError as error:
        found = [
            cast("ErrorDetails", {**each, "loc": ("serve", *each["loc"])})
            for each in error.errors()
        ]
        document = Document("winnow serve", {"serve": values})
        raise JobFileError(explain(found, document)) from None
