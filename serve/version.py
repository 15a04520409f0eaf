"""A published model version: a folder that transformers loads, with a manifest beside it."""

from dataclasses import dataclass, field
from pathlib import Path

from jobs.spec.model import Task

CHOICE_FILE = "choice.json"
"""Among a version's exports: the engine that was chosen for it, and why."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published, verified model."""

    name: str
    id: str
    """The first 12 digits of the SHA-256 over the hashes of all files."""
    path: str
    labels: tuple[str, ...]
    is_pair: bool
    """Whether an input is a pair of texts."""
    max_length: int
    """Longest input in tokens."""
    task: Task = "text-classification"
    metrics: dict[str, float] = field(default_factory=dict)
    """What the model scored on the evaluation rows when it was trained."""

    @property
    def exports(self) -> str:
        """Folder beside the version for what engines make of it."""
        return str(Path(self.path).parent / ".exports" / self.id)
