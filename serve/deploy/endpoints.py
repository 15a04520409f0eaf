"""Lists and removes the endpoints of a cluster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx
import ray.serve
import ray.serve.schema
from pydantic import TypeAdapter, ValidationError

from jobs.errors import DeployError
from jobs.spec.serve import ServeSpec
from serve.deploy import haproxy_client
from serve.deploy.rollout import Counts
from serve.deploy.routing import Routes, model_of, version_of
from serve.deploy.served import Application, ServedVersion, served

HOST = "127.0.0.1"
"""Address of the proxy, which accepts requests of this machine only."""
ROUTES_TIMEOUT_S = 10.0
"""Timeout of a request for the routes of Ray Serve's proxy."""


def states() -> dict[str, str]:
    """Returns Ray Serve's status of every model's applications, by the model's name."""
    by_model: dict[str, str] = {}
    for name, application in ray.serve.status().applications.items():
        model, state = model_of(name), application.status.value
        is_same = by_model.get(model, state) == state
        by_model[model] = state if is_same else f"{by_model[model]}, {state}"
    return by_model


def every(port: int) -> tuple[ServedVersion, ...]:
    """Returns every version that the cluster serves, with its route, state and replicas."""
    applications = _applications()
    routes = haproxy_client.read() if applications else {}
    return served(applications, routes, _proxy_routes(port) if routes is None else {})


@dataclass(frozen=True, slots=True)
class Observed:
    """What a cluster serves, and what its HAProxy has counted."""

    versions: tuple[ServedVersion, ...]
    routes: Routes
    counts: Mapping[str, Counts]
    """Answers and errors by application; empty without HAProxy."""


def observe(port: int) -> Observed:
    """Returns what `every` returns, with the routes and the counts of HAProxy."""
    applications = _applications()
    routes, counts = haproxy_client.observe() if applications else ({}, {})
    by_route = _proxy_routes(port) if routes is None else {}
    return Observed(served(applications, routes, by_route), routes or {}, counts)


def _applications() -> list[Application]:
    return [
        Application(name, each.status.value, _running(each.deployments.values()))
        for name, each in ray.serve.status().applications.items()
    ]


def _running(deployments: Iterable[ray.serve.schema.DeploymentStatusOverview]) -> int:
    """Returns the number of replicas that run."""
    counts = (deployment.replica_states for deployment in deployments)
    return sum(n for states in counts for state, n in states.items() if state == "RUNNING")


def applications_of(model: str) -> list[str]:
    """Returns the names of a model's applications."""
    return [name for name in ray.serve.status().applications if model_of(name) == model]


def models_by_route(port: int) -> dict[str, str]:
    """Returns the model of each public route; routes without a running application are omitted."""
    routes = haproxy_client.read()
    if routes is not None:
        return _owners(routes)
    known = ray.serve.status().applications
    by_route = _proxy_routes(port) if known else {}
    return {route: model_of(name) for route, name in by_route.items() if name in known}


def remove(model: str) -> bool:
    """Removes a model's endpoint; returns False if it has none. Ray Serve keeps running."""
    applications = applications_of(model)
    owners = _owners(haproxy_client.read() or {})
    drop([route for route, owner in owners.items() if owner == model])
    for application in applications:
        ray.serve.delete(application)
    return bool(applications)


def drop(routes: Sequence[str]) -> None:
    """Removes routes from HAProxy's maps."""
    if routes:
        haproxy_client.write(dict.fromkeys(routes))


def _owners(routes: Routes) -> dict[str, str]:
    versions = {version_of(name): model_of(name) for name in ray.serve.status().applications}
    return {
        route: to.model or versions[to.stable]
        for route, to in routes.items()
        if to.stable in versions
    }


def _proxy_routes(port: int) -> dict[str, str]:
    """Returns the applications by route of Ray Serve's proxy; empty if it does not answer."""
    try:
        url = f"http://{HOST}:{port}/-/routes"
        answer = httpx.get(url, timeout=ROUTES_TIMEOUT_S, trust_env=False)
        return TypeAdapter(dict[str, str]).validate_json(answer.raise_for_status().content)
    except (httpx.HTTPError, ValidationError):
        return {}


def moved_routes(model: str, spec: ServeSpec, port: int) -> list[str]:
    """Returns the routes that the model leaves when it is deployed to the spec's route.

    Raises:
        DeployError: if the spec's route belongs to another model.
    """
    owners = models_by_route(port)
    owner = owners.get(spec.route, model)
    if owner != model:
        raise DeployError(
            f"{model} cannot be deployed: {spec.route} is the route of {owner}; choose another"
            " serve.route"
        )
    return [route for route, owner in owners.items() if owner == model and route != spec.route]


def log_moved_routes(model: str, spec: ServeSpec, port: int, log: Callable[[str], None]) -> None:
    """Logs the routes that the model leaves; raises DeployError as `moved_routes` does."""
    for route in moved_routes(model, spec, port):
        log(f"{route} will no longer answer once {model} is deployed to {spec.route}")
