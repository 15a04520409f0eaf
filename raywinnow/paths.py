"""Where Winnow's processes import from: never from the user's working directory.

Python puts the working directory of `python -m` on the import path, Ray copies that of a driver to
every worker, and an empty entry in PYTHONPATH stands for it.
"""

import importlib
import importlib.machinery
import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("cluster", "jobs", "orchestrator", "raywinnow", "serve")
"""Winnow's import packages."""
ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds them: site-packages, or a checkout."""
LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
"""Python's names of the folders that it imports from by itself."""
VARIABLE = "PYTHONPATH"
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets this variable in the driver of a submitted job."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A file that Python finds before one of Winnow's packages."""

    path: Path
    package: str
    is_sent: bool
    """Whether it is in the working directory that was sent to a cluster with the job."""


def claim() -> None:
    """Take the working directory off the import path, and load Winnow's packages.

    Processes that this one starts inherit a PYTHONPATH without the working directory.
    """
    sys.path[:] = [entry for entry in sys.path if not _is_working_directory(entry)]
    own = environment()
    os.environ.pop(VARIABLE, None)
    os.environ.update({VARIABLE: own[VARIABLE]} if VARIABLE in own else {})
    load()


def load() -> None:
    """Import Winnow's packages from ROOT, whatever comes before it on the import path."""
    sys.path.insert(0, str(ROOT))
    for package in PACKAGES:
        importlib.import_module(package)
    sys.path.remove(str(ROOT))


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for a Python that this process starts; PYTHONPATH has no working directory.

    Where Winnow runs from a checkout, PYTHONPATH begins with it.
    """
    entries = variables.get(VARIABLE, "").split(os.pathsep)
    kept = [entry for entry in entries if entry and not _is_working_directory(entry)]
    found = [*checkout(), *(entry for entry in kept if Path(entry).resolve() != ROOT)]
    others = {name: value for name, value in variables.items() if name != VARIABLE}
    return {**others, VARIABLE: os.pathsep.join(found)} if found else others


def checkout() -> list[str]:
    """The checkout that Winnow runs from; empty where it is installed in site-packages."""
    places = [*site.getsitepackages(), site.getusersitepackages()]
    return [] if ROOT in (Path(place).resolve() for place in places) else [str(ROOT)]


def shadows() -> Iterator[Shadow]:
    """Files that this process, or Ray's workers, would import instead of Winnow's packages."""
    for place in _before_root():
        yield from _found(place, is_sent=False)
    if _has_sent_folder() and Path.cwd().resolve() != ROOT:
        yield from _found(Path.cwd(), is_sent=True)


def holds_winnow(folder: Path) -> bool:
    """Whether a folder is a checkout of Winnow, or a copy of its packages."""
    return all((folder / package / "py.typed").is_file() for package in PACKAGES)


def _before_root() -> Iterator[Path]:
    """Places on the import path, up to the one with Winnow's packages."""
    for entry in sys.path:
        place = Path(entry).resolve()
        if place == ROOT:
            return
        yield place


def _found(place: Path, *, is_sent: bool) -> Iterator[Shadow]:
    for package in PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(package, [str(place)])
        if spec is not None and spec.loader is not None and spec.origin:
            yield Shadow(Path(spec.origin), package, is_sent)


def _has_sent_folder() -> bool:
    """Whether Ray unpacked a working directory for this driver and its workers."""
    try:
        return "working_dir" in json.loads(os.environ.get(RAY_JOB, ""))["runtime_env"]
    except (ValueError, KeyError, TypeError):
        return False


def _is_working_directory(entry: str) -> bool:
    """Whether an entry of the import path is the working directory, and not Winnow or a library."""
    if not entry:
        return True
    place = Path(entry).resolve()
    libraries = (Path(sysconfig.get_path(name)) for name in LIBRARIES)
    is_own = place == ROOT or any(place.is_relative_to(library) for library in libraries)
    try:
        return not is_own and place == Path.cwd().resolve()
    except FileNotFoundError:  # somebody deleted it
        return False
