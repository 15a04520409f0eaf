"""Putting a model version behind an endpoint on Ray Serve, and taking it away.

Where HAProxy stands in front, each version is an application with a path of its own, and a route
is a weight between them. Elsewhere the version replaces the one before it in the same application,
new replicas first.
"""

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
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
from serve.deploy.release import Side
from serve.deploy.routing import application_of, version_of
from serve.deploy.scaling import Policy
from serve.frontends import grpc_api
from serve.http.auth import hashes_of
from serve.http.paths import version_path
from serve.version import ModelVersion

OUR_ERROR = re.compile(r"jobs\.errors\.\w+: (.+)")
"""One of our errors in the words of Ray, which shows where it was raised before."""
HEALTHY_TIMEOUT_S = 300.0
"""How long an application may take to choose its engine, load its model and answer."""
POLL_S = 0.3
GRPC_ABOVE = 1000
"""How far above the port of HTTP that of gRPC is."""
GRPC_TIMEOUT_S = 30.0
"""How long the proxy of a Ray Serve that just began may take until it answers gRPC."""
MAX_ONGOING = 4096
"""Requests in one replica that Ray Serve lets through; the replica bounds its queue in tokens."""
METRICS_INTERVAL_S = 2.0
"""How often replicas tell what waits."""
LOOK_BACK_S = 30.0
"""Longest time over which demand is averaged."""
DRAIN_S = 3.0
"""How long the old version stays after the last request was sent to it."""

FindVersion = Callable[[str, str], ModelVersion]
"""A published version by name and id."""


def deploy(
    version: ModelVersion,
    spec: ServeSpec,
    inventory: Inventory,
    *,
    port: int,
    find: FindVersion,
    tell: Callable[[str], None] = lambda _: None,
) -> Endpoint:
    """Deploy or update the version's endpoint and wait until it answers with this version.

    Raises InfeasibleError when the cluster lacks the devices, DeployError when it stays unhealthy,
    breaks the slo, or the gate of a rollout stops it; the version before it then still answers, but
    not where the same version moves to another route.
    """
    nodes = serving_nodes(spec, inventory)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    _start(spec, port)
    base = f"http://{HOST}:{port}"
    grpc_at = f"{HOST}:{grpc_port(port)}" if spec.grpc else None
    endpoint = Endpoint(version.name, f"{base}{spec.route}", version.id, grpc_at)
    left = moved_routes(version.name, spec, port)
    if haproxy_client.read() is None:
        _tell_what_is_not_kept(version, spec, tell)
        _run(version.name, version, spec, nodes, spec.route)
        _wait_until_answering(version.name, endpoint.url, version.id)
    else:
        _take_over(version, spec, nodes, endpoint, base, find, tell)
        endpoints.drop(left)
        _remove_others(version.name, keep=version.id)
    for route in left:
        tell(f"{route} answers no more: {version.name} is at {spec.route} now")
    return endpoint


def _take_over(
    version: ModelVersion,
    spec: ServeSpec,
    nodes: Sequence[Sequence[Node]],
    endpoint: Endpoint,
    base: str,
    find: FindVersion,
    tell: Callable[[str], None],
) -> None:
    """Start the version beside the one before it, and give it the route in HAProxy's maps."""
    routes, side = haproxy_client.read() or {}, _side(version, spec.route, base)
    old = routes.get(spec.route)
    is_new = old is None or old.stable != version.id
    has_route = any(route.stable == version.id for route in routes.values())
    _run(side.application, version, spec, nodes, version_path(version.id) + spec.route)
    try:
        _wait_until_answering(side.application, side.url, version.id, endpoint.grpc)
        if old and is_new and spec.rollout:
            before = _side(find(version.name, old.stable), spec.route, base)
            release.release(spec, spec.rollout, before, side, tell)
        else:
            release.at_once(spec, side, is_new=is_new)
    except BaseException:
        if not has_route:
            ray.serve.delete(side.application)
        raise
    _wait_until_answering(side.application, endpoint.url, version.id)


def moved_routes(model: str, spec: ServeSpec, port: int) -> list[str]:
    """Routes where the model answers now, and will not once it is deployed to that of the spec.

    Raises DeployError where the spec's route is another model's.
    """
    owners = endpoints.models_by_route(port)
    owner = owners.get(spec.route, model)
    if owner != model:
        raise DeployError(
            f"{model} cannot be deployed: {spec.route} is the route of {owner}; choose another"
            " serve.route"
        )
    return [route for route, owner in owners.items() if owner == model and route != spec.route]


def tell_moves(model: str, spec: ServeSpec, port: int, tell: Callable[[str], None]) -> None:
    """Say which routes the model will leave. Raises DeployError as `moved_routes`."""
    for route in moved_routes(model, spec, port):
        tell(f"{route} will answer no more once {model} is deployed to {spec.route}")


def _tell_what_is_not_kept(
    version: ModelVersion, spec: ServeSpec, tell: Callable[[str], None]
) -> None:
    """Without HAProxy nothing stands between two versions, or before them."""
    wanted = {
        "serve.rollout": spec.rollout,
        "serve.slo": spec.slo,
        "serve.limits.requests_per_second": spec.limits.requests_per_second,
    }
    if names := [name for name, value in wanted.items() if value]:
        tell(
            f"{version.id} takes over at once, without {', '.join(names)}: these are kept by"
            " HAProxy, which this cluster was started without; `winnow up` starts one with it"
        )


def grpc_port(port: int) -> int:
    """Where endpoints answer gRPC, from where they answer HTTP."""
    return port + GRPC_ABOVE


def _start(spec: ServeSpec, port: int) -> None:
    """Ray Serve, unless it runs; DeployError when it runs without the gRPC that is wanted."""
    options: dict[str, Any] = {}
    if spec.grpc:
        grpc_api.messages()
        options["grpc_options"] = ray.serve.config.gRPCOptions(
            port=grpc_port(port), grpc_servicer_functions=[grpc_api.ADD]
        )
    # a proxy that is not up in time, on a busy machine, is waited for when it is asked
    with contextlib.suppress(TimeoutError):
        ray.serve.start(http_options=ray.serve.config.HTTPOptions(host=HOST, port=port), **options)
    if spec.grpc and not grpc_api.answers(f"{HOST}:{grpc_port(port)}", GRPC_TIMEOUT_S):
        raise DeployError(
            f"serve.grpc is set, but nothing answers gRPC at {HOST}:{grpc_port(port)}: Ray Serve"
            " runs without it; start the cluster anew, and deploy again"
        )


def serving_nodes(spec: ServeSpec, inventory: Inventory) -> tuple[tuple[Node, ...], ...]:
    """Nodes that can hold a replica, of each kind, the preferred first.

    Raises InfeasibleError when there is none.
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


def _side(version: ModelVersion, route: str, base: str) -> Side:
    application = application_of(version.name, version.id)
    return Side(version, application, f"{base}{version_path(version.id)}{route}")


def _remove_others(name: str, *, keep: str) -> None:
    others = [found for found in endpoints.applications_of(name) if version_of(found) != keep]
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
    """A version's application below a path.

    Each replica is on a node with the labels of the first of `places` that has room. Those that run
    are adjusted if they can be; with another `renewal` they never are.
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
        version=config.fingerprint + renewal,  # or replicas would restart each time
        _internal=True,  # Ray Serve takes no `version` without
        max_ongoing_requests=MAX_ONGOING,
        max_surge_percent=100,  # new replicas before old ones leave, or requests are lost
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
        initial_replicas=max(1, replicas.min),  # it is shown to answer before it sleeps
        target_ongoing_requests=scaling.target_ongoing_requests,
        upscale_delay_s=upscale_s,
        downscale_delay_s=scaling.downscale_delay.total_seconds(),
        metrics_interval_s=METRICS_INTERVAL_S,
        look_back_period_s=max(2 * METRICS_INTERVAL_S, min(LOOK_BACK_S, upscale_s)),
        policy=ray.serve.config.AutoscalingPolicy(
            policy_function=Policy, policy_kwargs={"targets": targets}
        ),
    )


def _why(found: Any) -> str:
    """The sentence of ours among what Ray Serve says of its replicas, else Ray Serve's own."""
    texts = "\n".join(str(each.message) for each in found.deployments.values())
    ours = OUR_ERROR.findall(texts)
    return ours[-1] if ours else first_line(found.message)


def _wait_until_answering(
    application: str, url: str, version: str, grpc_at: str | None = None
) -> None:
    """Over HTTP, and at an address of gRPC where one is given."""
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    while time.monotonic() < deadline:
        found = ray.serve.status().applications.get(application)
        if found and found.status.value == "DEPLOY_FAILED":
            raise DeployError(f"{application} did not start: {_why(found)}")
        is_running = found is not None and found.status.value == "RUNNING"
        is_up = is_running and _answering_version(url) == version
        if is_up and (not grpc_at or grpc_api.is_ready(grpc_at, application)):
            return
        time.sleep(POLL_S)
    raise DeployError(
        f"{url} did not answer with version {version} within"
        f" {HEALTHY_TIMEOUT_S:.0f} s; see `winnow status` and the logs of Ray Serve"
    )


def _answering_version(url: str) -> str | None:
    try:
        answer = httpx.get(f"{url}/health", timeout=10.0)
        return str(answer.json()["version"]) if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, KeyError):
        return None
