"""Putting a model version behind an endpoint on Ray Serve, and taking it away."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import httpx
import ray.serve
import ray.serve.config
import ray.serve.exceptions
import ray.serve.schema

from cluster import catalogue, labels
from cluster.inventory import Inventory, Node
from jobs.errors import DeployError, InfeasibleError
from jobs.spec.serve import ServeSpec
from serve.application import Classifier
from serve.version import ModelVersion

HOST = "127.0.0.1"
"""Where the proxy listens: the endpoint has no lock of its own yet, so not on the network."""
HEALTHY_TIMEOUT_S = 120.0
"""How long an application may take to load its model and answer."""
POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A healthy application."""

    application: str
    url: str
    """Of the route; predictions are at `<url>/predict`."""
    version: str
    """Id of the model version that answers."""


def deploy(version: ModelVersion, spec: ServeSpec, inventory: Inventory, *, port: int) -> Endpoint:
    """Deploy or update the version's application and wait until it answers with this version.

    Raises InfeasibleError when the cluster lacks the devices, DeployError when it stays unhealthy.
    """
    nodes = serving_nodes(spec, inventory)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray.serve.start(http_options=ray.serve.config.HTTPOptions(host=HOST, port=port))
    target = ray.serve.RunTarget(
        _application(version, spec, nodes), name=version.name, route_prefix=spec.route
    )
    try:
        ray.serve.run_many([target], wait_for_applications_running=False)
    except (ValueError, RuntimeError, ray.serve.exceptions.RayServeException) as error:
        raise DeployError(f"{version.name} cannot be deployed: {_first_line(error)}") from None
    endpoint = Endpoint(version.name, f"http://{HOST}:{port}{spec.route}", version.id)
    _wait_until_answering(endpoint)
    return endpoint


def remove(application: str) -> bool:
    """Take an application away and leave Ray Serve up; False when there was none."""
    if application not in ray.serve.status().applications:
        return False
    ray.serve.delete(application)
    return True


def applications() -> dict[str, str]:
    """Status of every application on the cluster by name."""
    return {name: found.status.value for name, found in ray.serve.status().applications.items()}


def serving_nodes(spec: ServeSpec, inventory: Inventory) -> tuple[Node, ...]:
    """Nodes that can hold a replica; InfeasibleError when there is none."""
    request = spec.accelerators
    sku = catalogue.find(request.name)
    nodes = tuple(n for n in inventory.with_sku(sku.name) if n.devices >= request.count)
    if not nodes:
        raise InfeasibleError(
            f"no node can hold a replica on {sku.name}:{request.count}: the cluster has {inventory}"
        )
    return nodes


def _application(
    version: ModelVersion, spec: ServeSpec, nodes: tuple[Node, ...]
) -> ray.serve.Application:
    is_cpu = nodes[0].sku == catalogue.CPU
    count = spec.accelerators.count
    options: dict[str, Any] = {
        "num_cpus": count if is_cpu else 1,
        "label_selector": {labels.NODE_ID: f"in({','.join(node.id for node in nodes)})"},
    }
    if not is_cpu:
        options["num_gpus"] = count
    replicas, scaling = spec.replicas, spec.autoscaling
    deployment = Classifier.options(  # type: ignore[attr-defined]  # the decorator is untyped
        ray_actor_options=options,
        max_ongoing_requests=max(64, 4 * spec.batching.max_batch_size),
        autoscaling_config=ray.serve.config.AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.max,
            target_ongoing_requests=scaling.target_ongoing_requests,
            upscale_delay_s=scaling.upscale_delay.total_seconds(),
            downscale_delay_s=scaling.downscale_delay.total_seconds(),
        ),
    )
    return deployment.bind(
        version,
        spec.precision,
        "cpu" if is_cpu or nodes[0].simulated else "cuda",
        spec.batching.max_batch_size,
        spec.batching.max_wait.total_seconds(),
    )


def _wait_until_answering(endpoint: Endpoint) -> None:
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    while time.monotonic() < deadline:
        found = ray.serve.status().applications.get(endpoint.application)
        if found and found.status.value == "DEPLOY_FAILED":
            raise DeployError(f"{endpoint.application} did not start: {_first_line(found.message)}")
        is_running = found is not None and found.status.value == "RUNNING"
        if is_running and _answering_version(endpoint.url) == endpoint.version:
            return
        time.sleep(POLL_S)
    raise DeployError(
        f"{endpoint.url} did not answer with version {endpoint.version} within"
        f" {HEALTHY_TIMEOUT_S:.0f} s; see `winnow status` and the logs of Ray Serve"
    )


def _answering_version(url: str) -> str | None:
    try:
        answer = httpx.get(f"{url}/health", timeout=10.0)
        return str(answer.json()["version"]) if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, KeyError):
        return None


def _first_line(error: object) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")
