"""Routes and their versions as values, and as the text of HAProxy's maps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from serve.http.paths import PREFIX, version_path

OF_VERSION = re.compile(r"(?P<model>.+)--(?P<version>[0-9a-f]{12})")
"""Name of a version's application; the model's name may contain two hyphens itself."""


@dataclass(frozen=True, slots=True)
class Route:
    """The versions behind one public route."""

    stable: str
    """Id of the version that answers all requests but the canary's."""
    canary: str | None = None
    """Id of the new version during a rollout."""
    weight: int = 0
    """Percentage of requests that the canary answers."""
    rate: int = 0
    """Most requests per second of one client; 0 for no limit."""
    model: str = ""
    """Name of the model that both versions belong to."""


Routes = Mapping[str, Route]
"""Routes by their public path, such as `/reviews`."""


def application_of(model: str, version: str) -> str:
    """Returns the name of a version's own application."""
    return f"{model}--{version}"


def model_of(application: str) -> str:
    """Returns the model of an application, whose name is the model's or includes a version."""
    match = OF_VERSION.fullmatch(application)
    return match["model"] if match else application


def version_of(application: str) -> str | None:
    """Returns the version id in an application's name; None if it has none."""
    match = OF_VERSION.fullmatch(application)
    return match["version"] if match else None


def with_canary(route: Route, canary: str, weight: int) -> Route:
    """Returns the route with a percentage of the requests for a canary."""
    return replace(route, canary=canary, weight=weight)


def maps(routes: Routes) -> tuple[dict[str, str], ...]:
    """Returns HAProxy's five maps: stable, canary, weight, rate, and route by model.

    The keys of the first four are routes with a slash at the end. The last one has the route by the
    model's name, because gRPC requests carry the name only.
    """
    stable = {f"{name}/": version_path(route.stable) for name, route in routes.items()}
    split = {f"{name}/": route for name, route in routes.items() if route.canary and route.weight}
    canary = {name: version_path(route.canary or "") for name, route in split.items()}
    weights = {name: str(route.weight) for name, route in split.items()}
    rates = {f"{name}/": str(route.rate) for name, route in routes.items() if route.rate}
    models = {route.model: f"{name}/" for name, route in routes.items() if route.model}
    return stable, canary, weights, rates, models


def parse(*texts: str) -> dict[str, Route]:
    """Returns the routes from the texts of the five maps, in the order of `maps`."""
    tables = [dict(line.split() for line in text.splitlines() if line) for text in texts]
    models = {name: model for model, name in tables[4].items()}
    return {
        name.removesuffix("/"): Route(
            path.removeprefix(PREFIX),
            tables[1][name].removeprefix(PREFIX) if name in tables[1] else None,
            int(tables[2].get(name, 0)),
            int(tables[3].get(name, 0)),
            models.get(name, ""),
        )
        for name, path in tables[0].items()
    }


def text_of(table: Mapping[str, str]) -> str:
    """Returns the text of a map as HAProxy reads it from a file."""
    return "".join(f"{key} {value}\n" for key, value in table.items())
