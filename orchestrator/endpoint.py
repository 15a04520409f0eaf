"""The application that a KubeRay RayService runs: a published version, as its job serves it."""

import ray.serve
from pydantic import BaseModel, ConfigDict

from cluster import catalogue, labels
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import open_storage
from orchestrator.records import registry
from serve.deploy import deployment


class EndpointArguments(BaseModel):
    """What Ray Serve's configuration says of it."""

    model_config = ConfigDict(extra="forbid")

    model: str
    storage: str
    """Where it is published."""
    version: str | None = None
    """Id; the newest if left out."""
    serve: ServeSpec


def build(arguments: EndpointArguments) -> ray.serve.Application:
    """The application. Raises RunError when nothing is published, DeployError without tokens."""
    version = registry.read(open_storage(arguments.storage), arguments.model, arguments.version)
    serve = arguments.serve
    places = [{labels.SKU: sku} for sku in catalogue.served_skus(serve)]
    is_gpu = places[0][labels.SKU] != catalogue.CPU
    return deployment.bind(version, serve, serve.route, places, is_gpu=is_gpu)
