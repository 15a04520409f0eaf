"""The entry of the `winnow` command: loads Winnow's packages from beside this one, nowhere else.

They have common names, and a user's `serve.py` or `jobs/` must not stand in for them. This package
has a name of its own, so that its code runs first.
"""

import importlib

from raywinnow import paths

DISTRIBUTION = "raywinnow"
"""Winnow's name on PyPI."""
COMMAND = "python -m raywinnow"
"""Runs `winnow` on a cluster; no file of a user's working directory has the module's name."""


def version() -> str:
    """The version that pyproject.toml declares, in a checkout or when the wheel was built.

    A copy of the packages without either has none.
    """
    import importlib.metadata
    import tomllib

    try:
        with (paths.ROOT / "pyproject.toml").open("rb") as handle:
            project = tomllib.load(handle)["project"]
        if project["name"] == DISTRIBUTION:
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass  # no checkout
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main() -> None:
    """Run the `winnow` command."""
    paths.claim()
    importlib.import_module("orchestrator.cli").main()
