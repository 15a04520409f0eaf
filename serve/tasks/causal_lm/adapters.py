"""Adapters that a replica answers with beside its own: published ones of the same base."""

import asyncio
import collections
import concurrent.futures
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from jobs.errors import CheckpointError, DeployError, ModelError, StorageError, WinnowError
from jobs.spec.model import REGISTRY_SCHEME
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training.model import location
from jobs.training.model.library import as_model_error
from serve.batching.client import DeadlineError
from serve.engines.generating.adapters import Adapter, LowRank, UnsuitableAdapterError
from serve.http.errors import HttpError
from serve.http.handler import error_of
from serve.version import ModelVersion

CONFIG, WEIGHTS = location.ADAPTER_CONFIG, "adapter_model.safetensors"
"""Files of peft."""
REFERENCE = re.compile(r"([a-z0-9][a-z0-9-]*)@([0-9a-f]{12})")
"""Name of a model, and the id of a version."""
WEIGHTS_OF_BASE = "base_weights"
"""Name of the digest of the base's weights in an adapter's manifest."""
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""How peft names weights: the layer's name is between."""
UNUSUAL = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication")
"""Settings of peft whose adapters are more than a product for each layer."""
SHARED_FILES = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
"""Files that all adapters behind one replica have in common, since it has one of each."""
READERS = 2
"""Adapters that are read at once, beside the threads that render prompts."""


@dataclass(frozen=True, slots=True)
class Named:
    """The version that a request names."""

    model: str
    """As its answers say it."""
    version: str
    adapter: Adapter | None = None


class AdapterLibrary:
    """Reads adapters, each once, and keeps those that were asked for last."""

    def __init__(self, version: ModelVersion, models: Sequence[str], kept: int) -> None:
        """Args: the replica's own version, an adapter, in a local folder.

        `models` are patterns of the names of further models; `kept` adapters stay on the host.

        Raises:
            DeployError: if it is no adapter that a replica can serve.
        """
        self._version, self._models, self._kept = version, models, kept
        self._folder = Path(version.path)
        self._manifest = manifest.read(self._folder)
        self._read = collections.OrderedDict[str, asyncio.Future[Adapter]]()
        self._readers = concurrent.futures.ThreadPoolExecutor(READERS, "adapters")
        try:
            self.own = read(self._folder, f"{version.name}@{version.id}")
        except UnsuitableAdapterError as error:
            message = (
                f"{version.name} {version.id} {error}; train it with model.adapter.merge: true"
            )
            raise DeployError(message) from None
        self.base, self._base_weights = self._located()

    def _located(self) -> tuple[Path | str, str]:
        """Returns the folder of the base and the digest of its weights.

        Where the Hub has no safetensors of the base, it returns its id and no digest.

        Raises:
            DeployError: if this machine does not have the base, or only with other weights.
        """
        base, revision = str(self._manifest["base"]), _settings(self._folder).get("revision")
        try:
            place: Path | str
            if base.startswith(REGISTRY_SCHEME):
                place = self._folder_of(*base.removeprefix(REGISTRY_SCHEME).split("@"))
            else:
                place = location.locate(base)
            commit = f"commit {revision} of " if revision else ""
            with as_model_error(f"{commit}{base} cannot be read"):
                files = location.files_of(place, revision)
            if self._manifest.get(WEIGHTS_OF_BASE) not in (None, "", files.digest):
                raise ModelError(
                    f"the weights of {base} have changed since the adapter was trained; bring them"
                    " back, or train it again"
                )
            return files.place, files.digest
        except WinnowError as error:
            own = f"{self._version.name} {self._version.id}"
            raise DeployError(f"the base of the adapter {own}: {error}") from None

    async def named(self, model: str, check: Callable[[Adapter], None], timeout_s: float) -> Named:
        """Returns the adapter `name@id`; `check` raises UnsuitableAdapterError for one of no use.

        Raises:
            HttpError: 404 if it is not published or of another base, 503 if the storage does not
                answer, 504 if it is not read in time.
        """
        found = REFERENCE.fullmatch(model)
        if found is None:
            raise self._unknown("write name@id, as winnow models list shows them")
        if not self._is_open(found[1]):
            raise self._unknown("serve.adapters.models does not have this name")
        try:
            adapter = await asyncio.wait_for(self._being_read(model, *found.groups()), timeout_s)
            check(adapter)
        except TimeoutError:
            raise error_of(DeadlineError()) from None
        except UnsuitableAdapterError as error:  # kept, as a version never changes
            raise self._unknown(f"this adapter {error}") from None
        except WinnowError as error:
            self._read.pop(model, None)  # it may be published later
            if isinstance(error, StorageError):
                message = "the storage with the adapters does not answer; try again later"
                raise HttpError(503, "unavailable", message, param="model") from None
            raise self._unknown("it is not published here") from None
        return Named(model, found[2], adapter)

    def _being_read(self, model: str, name: str, identity: str) -> "asyncio.Future[Adapter]":
        """Returns what an adapter becomes once it is read; the caller may leave before."""
        if model not in self._read:
            loop = asyncio.get_running_loop()
            load = functools.partial(self._load, name, identity)
            self._read[model] = loop.run_in_executor(self._readers, load)
        self._read.move_to_end(model)
        while len(self._read) > self._kept:
            self._read.popitem(last=False)
        return asyncio.shield(self._read[model])

    @property
    def names(self) -> list[str]:
        """The adapters that were read and are kept."""
        done = [name for name, read in self._read.items() if read.done() and not read.exception()]
        return sorted({self.own.name, *done})

    def _is_open(self, name: str) -> bool:
        patterns = (self._version.name, *self._models)
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def _unknown(self, reason: str) -> HttpError:
        own = self._version.name
        message = f"this endpoint serves {own} and adapters of its base: {reason}"
        return HttpError(404, "not_found", message, param="model")

    def _load(self, name: str, identity: str) -> Adapter:
        folder = self._folder_of(name, identity)
        self._check_shared(manifest.read(folder))
        return read(folder, f"{name}@{identity}")

    def _check_shared(self, details: Mapping[str, Any]) -> None:
        own = self._manifest
        if details.get("base") != own["base"]:
            raise UnsuitableAdapterError("has another base")
        if details.get(WEIGHTS_OF_BASE) not in (None, "", self._base_weights):
            raise UnsuitableAdapterError("was trained on other weights of its base than are here")
        for name in SHARED_FILES:
            if details["files"].get(name) != own["files"].get(name):
                raise UnsuitableAdapterError(f"has another {name}")

    def _folder_of(self, name: str, identity: str) -> Path:
        """Returns the folder of a version in the storage of the replica's own.

        Raises:
            WinnowError: if there is none, or the storage cannot be read.
        """
        beside = self._folder.parent.parent / name / identity
        if beside.is_dir():
            manifest.verify(beside)
            return beside
        own, key = self._version, f"models/{name}/{identity}"
        if not own.url:
            raise CheckpointError(f"there is no {key}")
        storage = open_storage(own.url.removesuffix(f"/models/{own.name}/{own.id}"))
        return storage.objects.get_folder(key)


def is_adapter(folder: Path) -> bool:
    """Returns whether a version's folder holds an adapter without its base."""
    return (folder / CONFIG).exists() and not (folder / "config.json").exists()


def read(folder: Path, name: str) -> Adapter:
    """Reads an adapter that peft has saved.

    Raises:
        UnsuitableAdapterError: if it is more than a product of low rank for each linear layer.
    """
    try:
        settings = _settings(folder)
        weights = safetensors.torch.load_file(folder / WEIGHTS)
    except (OSError, ValueError, safetensors.SafetensorError):
        raise UnsuitableAdapterError(f"has no readable {CONFIG} and {WEIGHTS}") from None
    try:
        layers = _layers(settings, weights)
    except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError):
        raise UnsuitableAdapterError("has files that peft does not write") from None
    return Adapter(name, layers)


def _settings(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return found


def _layers(settings: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> dict[str, LowRank]:
    """Returns what an adapter adds to each layer; raises UnsuitableAdapterError, or Python's."""
    unusual = [each for each in UNUSUAL if settings.get(each)]
    if settings.get("peft_type") != "LORA" or unusual:
        found = ", ".join(unusual) or f"peft_type {settings.get('peft_type')}"
        raise UnsuitableAdapterError(f"is not of plain low rank: {found}")
    root = math.sqrt if settings.get("use_rslora") else float
    scale = settings["lora_alpha"] / root(settings["r"])
    layers = {}
    for key in sorted(weights):
        layer, _, kind = key.removeprefix(PREFIX).partition(".lora_")
        if key != f"{PREFIX}{layer}.lora_{kind}" or f".lora_{kind}" not in (DOWN, UP):
            raise UnsuitableAdapterError(f"is not of plain low rank: it has {key}")
        if f".lora_{kind}" == DOWN:
            layers[layer] = LowRank(weights[key], weights[f"{PREFIX}{layer}{UP}"].float() * scale)
    if not layers:
        raise UnsuitableAdapterError("changes no layer")
    return layers
