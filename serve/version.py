"""A published model version: a folder that transformers loads, with a manifest beside it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.spec.task_registry import DEFAULT_TASK
from jobs.storage import manifest
from jobs.storage.storage import open_storage

CHOICE_FILE = "choice.json"
"""Among a version's exports: the engine that was chosen for it, and why."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published, verified model."""

    name: str
    id: str
    """The first 12 digits of the SHA-256 over the hashes of all files."""
    path: str
    """Folder on the machine that read it."""
    labels: tuple[str, ...]
    is_pair: bool
    """Whether an input is a pair of texts."""
    max_length: int
    """Longest input in tokens."""
    task: str = DEFAULT_TASK
    metrics: dict[str, float] = field(default_factory=dict)
    """What the model scored on the evaluation rows when it was trained."""
    url: str = ""
    """Where it is kept: what another machine reads it from."""

    @property
    def exports(self) -> str:
        """Folder beside the version for what engines make of it."""
        return str(Path(self.path).parent / ".exports" / self.id)


def fetched(version: ModelVersion) -> ModelVersion:
    """The version with its files on this machine, their hashes checked.

    Raises CheckpointError when one is missing or was altered, StorageError.
    """
    folder = Path(version.path)
    if folder.is_dir() or not version.url:
        manifest.verify(folder)
        return version
    key = f"models/{version.name}/{version.id}"
    storage = open_storage(version.url.removesuffix(f"/{key}"))
    return replace(version, path=str(storage.objects.get_folder(key)))
