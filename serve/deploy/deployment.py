"""Deploys a model version to its endpoint on Ray Serve.

With HAProxy, each version is an application with its own path, and HAProxy distributes a route's
requests between versions. Without HAProxy, all versions of a model share one application, in which
Ray Serve replaces the old version's replicas.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray.exceptions
import ray.serve
import ray.serve.config
import ray.serve.exceptions
import ray.serve.schema

from cluster import catalogue
from cluster.inventory import Inventory, Node, selector
from jobs.errors import DeployError, InfeasibleError, first_line
from jobs.spec.serve import ServeSpec
from serve.config import configure
from serve.deploy import endpoints, haproxy_client, release
from serve.deploy.application import Replica
from serve.deploy.endpoint import Endpoint
from serve.deploy.endpoints import HOST
from serve.deploy.readiness import proxy_failure, wait_until_answering
from serve.deploy.release import DeployedVersion
from serve.deploy.routing import application_of, version_of
from serve.deploy.scaling import Policy
from serve.frontends import grpc_api
from serve.http.auth import hashes_of
from serve.http.paths import version_path
from serve.version import ModelVersion

GRPC_ABOVE = 1000
"""The gRPC port is the HTTP port plus this number."""
GRPC_TIMEOUT_S = 30.0
"""Longest time until a new proxy of Ray Serve answers gRPC."""
MAX_ONGOING = 4096
"""Ray Serve's limit of requests in a replica; the replica has its own limit, in tokens."""
METRICS_INTERVAL_S = 2.0
"""Time between two statistics of a replica for autoscaling."""
LOOK_BACK_S = 30.0
"""Longest period over which demand is averaged."""
DRAIN_S = 3.0
"""Time between the last request to the old version and its removal."""

FindVersion = Callable[[str, str], ModelVersion]
"""Returns a published version by its model's name and its id."""


def deploy(
    version: ModelVersion,
    spec: ServeSpec,
    inventory: Inventory,
    *,
    port: int,
    find_version: FindVersion,
    log: Callable[[str], None] = lambda _: None,
) -> Endpoint:
    """Deploys or updates the endpoint of a model, and returns once it answers with this version.

    After an error the old version still answers, unless the same version moves to another route.

    Args:
        version: The version to deploy.
        spec: The job's `serve` section.
        inventory: Nodes and devices of the cluster.
        port: Port of Ray Serve's HTTP proxy.
        find_version: Reads the old version for the comparison of a rollout.
        log: Receives lines for the user.

    Raises:
        InfeasibleError: if no node has the devices for a replica.
        DeployError: if the version does not become healthy, breaks the slo, or is stopped by the
            gate of the rollout; or if the route belongs to another model.
    """
    nodes = serving_nodes(spec, inventory)
    start(spec, port)
    base = f"http://{HOST}:{port}"
    grpc_at = f"{HOST}:{grpc_port(port)}" if spec.grpc else None
    endpoint = Endpoint(version.name, f"{base}{spec.route}", version.id, grpc_at)
    abandoned = endpoints.moved_routes(version.name, spec, port)
    if haproxy_client.read() is None:
        _log_ignored_settings(version, spec, log)
        _run(version.name, version, spec, nodes, spec.route)
        wait_until_answering(version.name, endpoint.url, version.id)
    else:
        _take_over(version, spec, nodes, endpoint, base, find_version, log)
        endpoints.drop(abandoned)
        _remove_others(version.name, keep=version.id)
    for route in abandoned:
        log(f"{route} no longer answers: {version.name} has moved to {spec.route}")
    return endpoint


def _take_over(
    version: ModelVersion,
    spec: ServeSpec,
    nodes: Sequence[Sequence[Node]],
    endpoint: Endpoint,
    base: str,
    find_version: FindVersion,
    log: Callable[[str], None],
) -> None:
    """Starts the version while the old one answers, and then moves the route in HAProxy's maps.

    If the version fails, its application is deleted, unless a route already has it.
    """
    routes, new = haproxy_client.read() or {}, _deployed(version, spec.route, base)
    old = routes.get(spec.route)
    is_new = old is None or old.stable != version.id
    has_route = any(route.stable == version.id for route in routes.values())
    _run(new.application, version, spec, nodes, version_path(version.id) + spec.route)
    try:
        wait_until_answering(new.application, new.url, version.id, endpoint.grpc)
        if old and is_new and spec.rollout:
            before = _deployed(find_version(version.name, old.stable), spec.route, base)
            release.roll_out(spec, spec.rollout, before, new, log)
        else:
            release.switch(spec, new, is_new=is_new)
    except BaseException:
        if not has_route:
            ray.serve.delete(new.application)
        raise
    wait_until_answering(new.application, endpoint.url, version.id)


def _log_ignored_settings(
    version: ModelVersion, spec: ServeSpec, log: Callable[[str], None]
) -> None:
    """Logs the settings that have no effect without HAProxy."""
    settings = {
        "serve.rollout": spec.rollout,
        "serve.slo": spec.slo,
        "serve.limits.requests_per_second": spec.limits.requests_per_second,
    }
    if names := [name for name, value in settings.items() if value]:
        log(
            f"{version.id} takes over at once, without {', '.join(names)}: this needs HAProxy,"
            " which this cluster does not have; `winnow up` starts a cluster with it"
        )


def grpc_port(port: int) -> int:
    """Returns the port for gRPC that belongs to a port for HTTP."""
    return port + GRPC_ABOVE


def start(spec: ServeSpec, port: int) -> None:
    """Starts Ray Serve if it is not running, as `deploy` does first of all.

    Raises:
        DeployError: if its proxy cannot start, such as on a port that another process holds, or
            `serve.grpc` is set and Ray Serve is running without gRPC.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    options: dict[str, Any] = {}
    if spec.grpc:
        grpc_api.messages()
        options["grpc_options"] = ray.serve.config.gRPCOptions(
            port=grpc_port(port), grpc_servicer_functions=[grpc_api.ADD]
        )
    try:
        ray.serve.start(http_options=ray.serve.config.HTTPOptions(host=HOST, port=port), **options)
    except TimeoutError:
        pass  # on a busy machine the proxy may start late; `wait_until_answering` waits for it
    except ray.exceptions.RayTaskError as error:
        raise DeployError(proxy_failure(str(error))) from None
    if spec.grpc and not grpc_api.answers(f"{HOST}:{grpc_port(port)}", GRPC_TIMEOUT_S):
        raise DeployError(
            f"serve.grpc is set, but nothing answers gRPC at {HOST}:{grpc_port(port)}: Ray Serve"
            " was started without it; restart the cluster and deploy again"
        )


def serving_nodes(spec: ServeSpec, inventory: Inventory) -> tuple[tuple[Node, ...], ...]:
    """Returns the nodes that can hold a replica, grouped by accelerator, the preferred one first.

    Raises:
        InfeasibleError: if there is none.
    """
    count = spec.accelerators.count
    kinds = [
        tuple(node for node in inventory.with_sku(sku) if node.devices >= count)
        for sku in catalogue.served_skus(spec)
    ]
    if not any(kinds):
        names = " or ".join(f"{sku}:{count}" for sku in catalogue.served_skus(spec))
        raise InfeasibleError(f"no node can hold a replica on {names}: the cluster has {inventory}")
    return tuple(nodes for nodes in kinds if nodes)


def _deployed(version: ModelVersion, route: str, base: str) -> DeployedVersion:
    application = application_of(version.name, version.id)
    return DeployedVersion(version, application, f"{base}{version_path(version.id)}{route}")


def _remove_others(name: str, *, keep: str) -> None:
    others = [each for each in endpoints.applications_of(name) if version_of(each) != keep]
    if others:
        time.sleep(DRAIN_S)
    for application in others:
        ray.serve.delete(application)


def _run(
    application: str,
    version: ModelVersion,
    spec: ServeSpec,
    kinds: Sequence[Sequence[Node]],
    prefix: str,
) -> None:
    is_gpu = kinds[0][0].sku != catalogue.CPU and not kinds[0][0].simulated
    known = ray.serve.status().applications.get(application)
    is_broken = known is not None and known.status.value not in ("DEPLOYING", "RUNNING")
    renewal = secrets.token_hex(4) if is_broken else ""
    places = [selector(nodes) for nodes in kinds]
    bound = bind(version, spec, prefix, places, is_gpu=is_gpu, renewal=renewal)
    target = ray.serve.RunTarget(bound, name=application, route_prefix=prefix)
    try:
        ray.serve.run_many([target], wait_for_applications_running=False)
    except (ValueError, RuntimeError, ray.serve.exceptions.RayServeException) as error:
        raise DeployError(f"{version.name} cannot be deployed: {first_line(error)}") from None


def bind(
    version: ModelVersion,
    spec: ServeSpec,
    prefix: str,
    places: Sequence[dict[str, str]],
    *,
    is_gpu: bool,
    renewal: str = "",
) -> ray.serve.Application:
    """Returns the Ray Serve application of a version.

    Args:
        version: The model version.
        spec: The job's `serve` section.
        prefix: Path of the application.
        places: Label selectors in order of preference; a replica starts on the first one with room.
        is_gpu: True if replicas use real GPUs.
        renewal: Changes the deployment's version, so that existing replicas are replaced even if
            they could be adjusted.
    """
    is_cpu = catalogue.find(spec.accelerators.name).name == catalogue.CPU
    count = spec.accelerators.count
    fronts = 0 if spec.fronts == "auto" else spec.fronts
    cores = (count if is_cpu else 1) + fronts
    options: dict[str, Any] = {"num_cpus": cores, "label_selector": places[0]}
    if len(places) > 1:
        options["fallback_strategy"] = [{"label_selector": place} for place in places[1:]]
    if not is_cpu:
        options["num_gpus"] = count
    config = configure(version, spec, prefix, is_gpu=is_gpu, token_hashes=hashes_of(spec))
    deployment = Replica.options(  # type: ignore[attr-defined]  # the decorator is untyped
        ray_actor_options=options,
        user_config=config.adjustable,
        version=config.fingerprint + renewal,  # without it replicas restart at each deployment
        _internal=True,  # Ray Serve accepts `version` only with this
        max_ongoing_requests=MAX_ONGOING,
        max_surge_percent=100,  # new replicas start before old ones end, so no request is lost
        graceful_shutdown_timeout_s=spec.limits.timeout.total_seconds(),
        autoscaling_config=_autoscaling(spec),
    )
    return deployment.bind(config)


def _autoscaling(spec: ServeSpec) -> ray.serve.config.AutoscalingConfig:
    replicas, scaling = spec.replicas, spec.autoscaling
    targets = {catalogue.find(name).name: target for name, target in scaling.targets.items()}
    upscale_s = scaling.upscale_delay.total_seconds()
    return ray.serve.config.AutoscalingConfig(
        min_replicas=replicas.min,
        max_replicas=replicas.max,
        initial_replicas=max(1, replicas.min),  # the deployment waits for an answer of one replica
        target_ongoing_requests=scaling.target_ongoing_requests,
        upscale_delay_s=upscale_s,
        downscale_delay_s=scaling.downscale_delay.total_seconds(),
        metrics_interval_s=METRICS_INTERVAL_S,
        look_back_period_s=max(2 * METRICS_INTERVAL_S, min(LOOK_BACK_S, upscale_s)),
        policy=ray.serve.config.AutoscalingPolicy(
            policy_function=Policy, policy_kwargs={"targets": targets}
        ),
    )
