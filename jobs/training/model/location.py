"""Where a base model is: a folder, here, in a package or in S3, or the hub."""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

from jobs.errors import ModelError, StorageError, first_line, shown
from jobs.storage import cache, files
from jobs.storage.bucket import BucketObjects
from jobs.storage.objects import Entry
from jobs.storage.storage import S3_SCHEME

PACKAGE_SCHEME = "package://"
WEIGHTS = ".safetensors"
KINDS = (WEIGHTS, ".json", ".txt", ".model", ".jinja")
"""Endings of what is fetched from S3: nothing that is pickled, no code."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "spm.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
"""Files of which one at least is beside a model that was saved with its tokenizer."""


def locate(base: str, *, has_weights: bool = True) -> Path | str:
    """A local directory for folders, `package://` names and S3, else the hub id as it is.

    From S3 files are fetched once; without `has_weights` only configuration and tokenizer. Raises
    ModelError when a package or folder is not there, StorageError where S3 may answer later.
    """
    if base.startswith(PACKAGE_SCHEME):
        return _in_package(base)
    if base.startswith(S3_SCHEME):
        return _in_bucket(base, has_weights=has_weights)
    path = files.expanded(base)
    if files.exists(path) and path.is_dir():
        return path.resolve()
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        raise ModelError(f"model folder {base} does not exist")
    return base


def check(directory: Path, base: str, *, has_weights: bool = True) -> None:
    """Raise ModelError where a folder lacks a configuration, a tokenizer or, if wanted, weights."""
    kind = read_config(directory).get("model_type")
    if not isinstance(kind, str):
        wrong = f"has the model_type {shown(kind)}" if kind else "has no model_type"
        raise ModelError(f"config.json of {base} {wrong}, so transformers cannot load the model")
    names = {path.name for path in directory.iterdir()}
    if has_weights and not any(name.endswith(WEIGHTS) for name in names):
        raise ModelError(
            f"{base} holds no weights that end in {WEIGHTS}; save the model with save_pretrained"
        )
    if names.isdisjoint(TOKENIZER_FILES):
        raise ModelError(
            f"{base} holds no tokenizer: save the one that the model was trained with beside it"
        )


def read_config(directory: Path) -> dict[str, Any]:
    """The model's config.json; raises ModelError when it is missing or not JSON."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except OSError:
        raise ModelError(f"{directory} has no config.json, so it holds no model") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{directory}/config.json is not JSON: {first_line(error)}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{directory}/config.json is not a JSON object")
    return config


def _in_bucket(base: str, *, has_weights: bool) -> Path:
    """The copy here of a folder in S3, one for each version of its files."""
    try:
        bucket = BucketObjects(base)
        found = [entry for entry in bucket.entries("") if _is_wanted(entry)]
        if not any(entry.key == "config.json" for entry in found):
            raise ModelError(f"{base} has no config.json, so it holds no model")
        versions = [f"{entry.key} {entry.size} {entry.modified}" for entry in found]
        name = hashlib.sha256("\n".join((base, *versions)).encode()).hexdigest()[:32]
        folder = cache.fetched() / name
        with cache.holding(folder):
            folder.mkdir(exist_ok=True)
            for entry in found:
                is_needed = has_weights or not entry.key.endswith(WEIGHTS)
                if is_needed and not (folder / entry.key).exists():
                    bucket.download(entry.key, folder / entry.key)
    except StorageError as error:
        if error.is_passing:
            raise
        raise ModelError(str(error)) from None
    return folder


def _is_wanted(entry: Entry) -> bool:
    return "/" not in entry.key and entry.key.endswith(KINDS)


def _in_package(base: str) -> Path:
    name, _, folder = base.removeprefix(PACKAGE_SCHEME).partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        pip_name = name.replace("_", "-")
        raise ModelError(
            f"package {shown(name)} of {base} is not installed; try pip install {pip_name}"
        )
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    path = (root / folder).resolve()
    if not path.is_relative_to(root) or not path.is_dir():
        raise ModelError(f"package {shown(name)} has no folder {shown(folder)}")
    return path
