"""The Ray Serve application of a KubeRay RayService: serves a published model version."""

import ray.serve
from pydantic import BaseModel, ConfigDict

from cluster import catalogue, labels
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import open_storage
from orchestrator.records import registry
from serve.deploy import deployment


class EndpointArguments(BaseModel):
    """The `args` of the application in Ray Serve's configuration."""

    model_config = ConfigDict(extra="forbid")

    model: str
    storage: str
    """Folder or bucket of the published model."""
    version: str | None = None
    """Version id; None for the newest."""
    serve: ServeSpec


def build(arguments: EndpointArguments) -> ray.serve.Application:
    """Build the application.

    Raises:
        RunError: if no such version is published.
        DeployError: if the endpoint's tokens are missing.
    """
    version = registry.read(open_storage(arguments.storage), arguments.model, arguments.version)
    serve = arguments.serve
    places = [{labels.SKU: sku} for sku in catalogue.served_skus(serve)]
    is_gpu = places[0][labels.SKU] != catalogue.CPU
    return deployment.bind(version, serve, serve.route, places, is_gpu=is_gpu)
