"""Where a base model is: a folder, a folder inside an installed package, or the hub."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from jobs.errors import ModelError

PACKAGE_SCHEME = "package://"


def locate(base: str) -> Path | str:
    """A local directory for folders and `package://` names, else the hub id as it is.

    Raises ModelError when a package or folder is not there.
    """
    if base.startswith(PACKAGE_SCHEME):
        return _in_package(base)
    path = Path(base).expanduser()
    if path.is_dir():
        return path.resolve()
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        raise ModelError(f"model folder {base} does not exist")
    return base


def read_config(directory: Path) -> dict[str, Any]:
    """The model's config.json; raises ModelError when it is missing or not JSON."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except OSError:
        raise ModelError(f"{directory} has no config.json, so it holds no model") from None
    except ValueError as error:
        raise ModelError(f"{directory}/config.json is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{directory}/config.json is not a JSON object")
    return config


def _in_package(base: str) -> Path:
    name, _, folder = base.removeprefix(PACKAGE_SCHEME).partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        pip_name = name.replace("_", "-")
        raise ModelError(f"package {name!r} of {base} is not installed; try pip install {pip_name}")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    path = (root / folder).resolve()
    if not path.is_relative_to(root) or not path.is_dir():
        raise ModelError(f"package {name!r} has no folder {folder!r}")
    return path
