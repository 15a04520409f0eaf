"""Paths of endpoints: a public route, and the path of each version, `/_v/<id>/<route>`."""

PREFIX = "/_v/"
"""First part of every version's own path."""


def version_path(version: str) -> str:
    """Returns the part of a version's path before the public route: `/_v/<id>`."""
    return f"{PREFIX}{version}"


def public_path(path: str) -> str:
    """Returns the public path of a version's path: `/reviews/docs` for `/_v/1f2e3d/reviews/docs`.

    A path that is public already is returned unchanged.
    """
    below = path.removeprefix(PREFIX)
    return path if below == path else f"/{below.partition('/')[2]}"


def relative(path: str, route: str) -> str:
    """Returns the path without the endpoint's route in front."""
    return path.removeprefix(route)
