"""Paths of endpoints: a public route, and the path that one version of a model has below it."""

PREFIX = "/_v/"
"""Every version has a path of its own below it."""


def version_path(version: str) -> str:
    """What stands before the public route in the path of one version."""
    return f"{PREFIX}{version}"


def public_path(path: str) -> str:
    """A path of one version as clients know it: `/reviews/docs` for `/_v/1f2e3d/reviews/docs`."""
    below = path.removeprefix(PREFIX)
    return path if below == path else f"/{below.partition('/')[2]}"


def relative(path: str, route: str) -> str:
    """A path below the endpoint's route."""
    return path.removeprefix(route) if path.startswith(route) else path
