"""Locates a base model: a local folder, a folder in a package or in S3, or the hub."""

import contextlib
import functools
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import ModelError, StorageError, first_line, shown
from jobs.spec.model import REGISTRY_SCHEME
from jobs.storage import files, manifest
from jobs.storage.objects import Entry
from jobs.storage.storage import S3_SCHEME

PACKAGE_SCHEME = "package://"
WEIGHTS = ".safetensors"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""File of all weights of a base, or of the names of several such files."""
KINDS = (WEIGHTS, ".json", ".txt", ".model", ".jinja")
"""Suffixes of the files that are downloaded from S3; neither pickles nor code."""
SMALL, SAMPLE, SAMPLE_EVERY = 2**25, 2**12, 2**20
"""Bytes: `weights_digest` reads files up to SMALL whole, of larger ones SAMPLE in SAMPLE_EVERY."""
ADAPTER_CONFIG = "adapter_config.json"
"""File of peft with an adapter's settings."""
POOLING = "1_Pooling/config.json"
"""File of a base for sentence-transformers that says how it pools."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "spm.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
"""At least one of these files is in the folder of a model that was saved with its tokenizer."""


def locate(base: str, *, has_weights: bool = True) -> Path | str:
    """Returns the local folder of a base, or its id if it is on the hub.

    A base in S3 is downloaded once; without `has_weights`, only configuration and tokenizer are.

    Raises:
        ModelError: if a package or folder does not exist.
        StorageError: if S3 cannot be reached, so that a later attempt may succeed.
    """
    if base.startswith(PACKAGE_SCHEME):
        return _in_package(base)
    if base.startswith(REGISTRY_SCHEME):
        raise ModelError(f"{base} is known to the storage of a job alone; name its folder here")
    if base.startswith(S3_SCHEME):
        return _in_bucket(base, has_weights=has_weights)
    path = files.expanded(base)
    if files.exists(path) and path.is_dir():
        return path.resolve()
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        raise ModelError(f"model folder {base} does not exist")
    return base


def fetch_from_hub(base: str) -> None:
    """Downloads the weights of a base on the hub into its cache: one file, or those of an index.

    Processes that load the base meanwhile wait for them. Raises what the client of the hub raises;
    does nothing for other bases.
    """
    if not base.startswith(S3_SCHEME) and isinstance(place := locate(base), str):
        _fetch_weights(place)


def fetch(base: str, revision: str | None = None) -> Path | str:
    """Downloads configuration and weights of a base on the hub as of a commit; returns its folder.

    Without a `revision` it is the newest commit, and a base without safetensors stays an id. Raises
    what the client of the hub raises.
    """
    import huggingface_hub
    import huggingface_hub.errors

    get = functools.partial(huggingface_hub.hf_hub_download, base, revision=revision)
    folder = Path(get("config.json")).parent
    with contextlib.suppress(huggingface_hub.errors.EntryNotFoundError):
        get("generation_config.json")
    try:
        _fetch_weights(base, folder.name)
    except huggingface_hub.errors.EntryNotFoundError:
        if revision:
            raise
        return base
    return folder


def _fetch_weights(base: str, revision: str | None = None) -> None:
    import huggingface_hub  # slow, and a base on this machine does not need it
    import huggingface_hub.errors

    get = functools.partial(huggingface_hub.hf_hub_download, base, revision=revision)
    try:
        get(WHOLE)
    except huggingface_hub.errors.EntryNotFoundError:
        for part in _parts(Path(get(INDEX))):
            get(part)


def _parts(index: Path) -> list[str]:
    """Returns the names of the files that an index has."""
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The files of a base, as they are read for training or serving."""

    place: Path | str
    """Their folder; the id of a base on the hub without safetensors."""
    digest: str
    """Digest of the weights; empty without safetensors."""
    commit: str
    """Commit on the hub; empty for other bases, and without safetensors."""


def files_of(place: Path | str, revision: str | None = None) -> BaseFiles:
    """Returns the files of a located base, which are downloaded if it is on the hub.

    `revision` is a commit on the hub, by default the newest. Raises what `fetch` and
    `weights_digest` raise.
    """
    folder = place if isinstance(place, Path) else fetch(place, revision)
    if isinstance(folder, str):
        return BaseFiles(folder, "", "")
    return BaseFiles(folder, weights_digest(folder), folder.name if isinstance(place, str) else "")


def weights_digest(folder: Path) -> str:
    """Returns a digest of the safetensors that transformers loads; empty if there are none.

    Of files of over SMALL bytes it reads SAMPLE bytes in every SAMPLE_EVERY.

    Raises:
        OSError: if a file is missing or cannot be read.
        ValueError, KeyError: for an index of another form.
    """
    if (folder / WHOLE).exists():
        names = [WHOLE]
    else:
        names = _parts(folder / INDEX) if (folder / INDEX).exists() else []
    parts = [f"{name} {_identity(folder / name)}" for name in names]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def _identity(path: Path) -> str:
    size = path.stat().st_size
    if size <= SMALL:
        return manifest.sha256(path)
    found = hashlib.sha256(str(size).encode())
    with path.open("rb", buffering=0) as handle:  # network file systems have large buffers
        for begin in range(0, size, SAMPLE_EVERY):
            handle.seek(begin)
            found.update(handle.read(SAMPLE))
    return found.hexdigest()


def seen_from(folder: Path, base: str) -> str:
    """Returns a base of a job file in `folder`: absolute if it is a path of this machine."""
    return str(folder.absolute() / files.expanded(base)) if files.is_here(base, folder) else base


def check(directory: Path, base: str, *, has_weights: bool = True) -> None:
    """Checks that a folder holds a configuration, a tokenizer and, with `has_weights`, weights.

    Raises:
        ModelError: if one of them is missing or invalid.
    """
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
            f"{base} holds no tokenizer: save the tokenizer that the model was trained with beside"
            " it"
        )


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the content of a model's config.json.

    Raises:
        ModelError: if the file is missing or not a JSON object.
    """
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
    """Returns the cached copy of a folder in S3; each version of its files has its own copy."""
    from jobs.storage import cache  # slow, and a base on this machine does not need them
    from jobs.storage.bucket import BucketObjects

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
            places = {entry.key: folder / entry.key for entry in found}
            for place in places.values():
                place.parent.mkdir(exist_ok=True)
            gone = bucket.download_all(
                {
                    key: place
                    for key, place in places.items()
                    if (has_weights or not key.endswith(WEIGHTS)) and not place.exists()
                }
            )
            if gone:
                raise ModelError(f"{gone[0]} of {base} was deleted meanwhile; start again")
    except StorageError as error:
        if error.is_passing:
            raise
        raise ModelError(str(error)) from None
    return folder


def _is_wanted(entry: Entry) -> bool:
    return entry.key == POOLING or ("/" not in entry.key and entry.key.endswith(KINDS))


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
