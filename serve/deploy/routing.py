"""Which version answers on which route, and which is on trial: values, and HAProxy's maps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from serve.http.paths import PREFIX, version_path

OF_VERSION = re.compile(r"(?P<model>.+)--(?P<version>[0-9a-f]{12})")
"""Name of an application of one version; the model's own name may have two hyphens, too."""


@dataclass(frozen=True, slots=True)
class Route:
    """Versions behind one public route, by their ids."""

    stable: str
    canary: str | None = None
    weight: int = 0
    """Percent of the requests that the canary answers."""
    rate: int = 0
    """Requests that one client may send in a second; 0 for any number."""
    model: str = ""
    """Whose versions they are."""


Routes = Mapping[str, Route]
"""By public route, such as `/reviews`."""


def application_of(model: str, version: str) -> str:
    """Name of a version's application where each version has one."""
    return f"{model}--{version}"


def model_of(application: str) -> str:
    """The model of an application, which is named for it alone or for one of its versions."""
    found = OF_VERSION.fullmatch(application)
    return found["model"] if found else application


def version_of(application: str) -> str | None:
    """Id of the version that an application is named for."""
    found = OF_VERSION.fullmatch(application)
    return found["version"] if found else None


def rolled_back(route: Route) -> Route:
    """The stable version answers everything."""
    return replace(route, canary=None, weight=0)


def tried(route: Route, canary: str, weight: int) -> Route:
    """A version on trial with a share of the requests."""
    return replace(route, canary=canary, weight=weight)


def maps(routes: Routes) -> tuple[dict[str, str], ...]:
    """HAProxy's maps, by route with a slash after it: stable, canary, weight, rate.

    The last is the route of a model by its name, which is all that gRPC's requests carry.
    """
    stable = {f"{name}/": version_path(route.stable) for name, route in routes.items()}
    trials = {f"{name}/": route for name, route in routes.items() if route.canary and route.weight}
    canary = {name: version_path(route.canary or "") for name, route in trials.items()}
    weights = {name: str(route.weight) for name, route in trials.items()}
    rates = {f"{name}/": str(route.rate) for name, route in routes.items() if route.rate}
    models = {route.model: f"{name}/" for name, route in routes.items() if route.model}
    return stable, canary, weights, rates, models


def parse(*texts: str) -> dict[str, Route]:
    """Routes from the text of the maps."""
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
    """A map as HAProxy reads it from a file."""
    return "".join(f"{key} {value}\n" for key, value in table.items())
