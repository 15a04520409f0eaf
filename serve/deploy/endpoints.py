"""The endpoints that are up: whose versions answer on which routes, and taking one away."""

from collections.abc import Sequence

import httpx
import ray.serve
from pydantic import TypeAdapter, ValidationError

from serve.deploy import haproxy_client
from serve.deploy.routing import Routes, model_of, version_of

HOST = "127.0.0.1"
"""Where the proxy listens: the endpoint is not for the network yet."""
ROUTES_TIMEOUT_S = 10.0
"""How long Ray Serve's proxy may take to say its routes."""


def states() -> dict[str, str]:
    """Status of every model's endpoint by name."""
    found: dict[str, str] = {}
    for name, application in ray.serve.status().applications.items():
        model, state = model_of(name), application.status.value
        found[model] = state if found.get(model, state) == state else f"{found[model]}, {state}"
    return found


def applications_of(model: str) -> list[str]:
    """Names of the applications of a model's versions."""
    return [name for name in ray.serve.status().applications if model_of(name) == model]


def models_by_route(port: int) -> dict[str, str]:
    """Which model answers on each public route; those whose application is gone are left out."""
    routes = haproxy_client.read()
    if routes is not None:
        return _owners(routes)
    known = ray.serve.status().applications
    told = _told_by_proxy(port) if known else {}
    return {route: model_of(name) for route, name in told.items() if name in known}


def remove(model: str) -> bool:
    """Take a model's endpoint away and leave Ray Serve up; False when there was none."""
    found = applications_of(model)
    owners = _owners(haproxy_client.read() or {})
    drop([route for route, owner in owners.items() if owner == model])
    for application in found:
        ray.serve.delete(application)
    return bool(found)


def drop(routes: Sequence[str]) -> None:
    """Take routes out of HAProxy's maps."""
    if routes:
        haproxy_client.write(dict.fromkeys(routes))


def _owners(routes: Routes) -> dict[str, str]:
    versions = {version_of(name): model_of(name) for name in ray.serve.status().applications}
    return {
        route: to.model or versions[to.stable]
        for route, to in routes.items()
        if to.stable in versions
    }


def _told_by_proxy(port: int) -> dict[str, str]:
    """Routes and their applications as Ray Serve's own proxy has them; none when it is not up."""
    try:
        answer = httpx.get(f"http://{HOST}:{port}/-/routes", timeout=ROUTES_TIMEOUT_S)
        return TypeAdapter(dict[str, str]).validate_json(answer.raise_for_status().content)
    except (httpx.HTTPError, ValidationError):
        return {}
