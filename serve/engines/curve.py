"""How fast one engine is on one device, by the size of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.spec.serve import EngineName


@dataclass(frozen=True, slots=True)
class Curve:
    """How one engine did on one device."""

    accelerators: str
    """Such as `T4:1`."""
    engine: EngineName
    refusal: str = ""
    """Why it may not serve there; empty when it may."""
    seconds: Mapping[int, float] | None = None
    """Mean time of a batch by its texts, of neighbours in length; None where it was refused."""
