"""A published model version: a folder that transformers loads, with a manifest beside it."""

from dataclasses import dataclass, field


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
    metrics: dict[str, float] = field(default_factory=dict)
    """What the model scored on the evaluation rows when it was trained."""
