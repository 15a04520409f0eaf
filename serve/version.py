"""A published model version: a folder that transformers loads, with a manifest beside it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.spec.task_registry import DEFAULT_TASK
from jobs.storage import manifest
from jobs.storage.storage import open_storage

CHOICE_FILE = "choice.json"
"""File in a version's `exports` folder with the selected engine and every engine's result."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published, verified model."""

    name: str
    id: str
    """The first 12 digits of the SHA-256 over the hashes of all files."""
    path: str
    """Folder with the files on the machine that read the version."""
    labels: tuple[str, ...]
    is_pair: bool
    """True if an input is a pair of texts."""
    max_length: int
    """Longest input in tokens."""
    task: str = DEFAULT_TASK
    metrics: dict[str, float] = field(default_factory=dict)
    """The training run's metrics on the evaluation rows."""
    thresholds: tuple[float, ...] = ()
    """Score from which on each label is given; empty for tasks without thresholds."""
    url: str = ""
    """Storage URL from which another machine reads the version; empty for a local one."""

    @property
    def exports(self) -> str:
        """Folder beside the version for graphs and timings that engines derive from it."""
        return str(Path(self.path).parent / ".exports" / self.id)


def fetched(version: ModelVersion) -> ModelVersion:
    """Copies the version's files to this machine, verifies their hashes, returns the local version.

    Raises:
        CheckpointError: if a file is missing or was altered.
        StorageError: if the storage cannot be read.
    """
    folder = Path(version.path)
    if folder.is_dir() or not version.url:
        manifest.verify(folder)
        return version
    key = f"models/{version.name}/{version.id}"
    storage = open_storage(version.url.removesuffix(f"/{key}"))
    return replace(version, path=str(storage.objects.get_folder(key)))
