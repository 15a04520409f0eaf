"""The versions that a cluster serves, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve.deploy.routing import Routes, model_of, version_of


@dataclass(frozen=True, slots=True)
class Application:
    """An application of Ray Serve."""

    name: str
    state: str
    """Ray Serve's status, such as RUNNING."""
    replicas: int
    """Replicas that run."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version of a model on a cluster."""

    name: str
    """Name of the model."""
    version: str | None
    """None for an application that is not of Winnow."""
    route: str | None
    """Public route; None for a version that no route leads to, such as a replaced one."""
    percent: int
    """Percentage of the route's requests that the version answers; 0 without a route."""
    state: str
    replicas: int


def served(
    applications: Sequence[Application], routes: Routes | None, by_route: Mapping[str, str]
) -> tuple[ServedVersion, ...]:
    """Returns every version by name, the one that answers most requests first.

    Args:
        applications: Those of Ray Serve.
        routes: Routes of HAProxy; None if no HAProxy has them.
        by_route: Application by route of Ray Serve's own proxy, which counts without `routes`.
    """
    found = [_served(each, routes, by_route) for each in applications]
    return tuple(sorted(found, key=lambda each: (each.name, -each.percent, each.version or "")))


def _served(
    application: Application, routes: Routes | None, by_route: Mapping[str, str]
) -> ServedVersion:
    model, version = model_of(application.name), version_of(application.name)
    if routes is None:
        shares = {route: 100 for route, name in by_route.items() if name == application.name}
    else:
        shares = _shares(routes, model, version)
    route = max(shares, key=lambda name: shares[name], default=None)
    return ServedVersion(
        name=model,
        version=version,
        route=route,
        percent=shares[route] if route else 0,
        state=application.state,
        replicas=application.replicas,
    )


def _shares(routes: Routes, model: str, version: str | None) -> dict[str, int]:
    """Returns the percentage of each route's requests that a version of a model answers."""
    shares = {}
    for name, route in routes.items():
        if route.model not in (None, model):
            continue  # two models may have versions of the same files
        canary = route.weight if route.canary else 0
        if version == route.stable:
            shares[name] = 100 - canary
        elif version and version == route.canary:
            shares[name] = canary
    return shares
