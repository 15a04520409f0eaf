"""The batch times of one engine on one device, by batch size."""

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.spec.serve import EngineName


@dataclass(frozen=True, slots=True)
class Curve:
    """Batch times of one engine on one device."""

    accelerators: str
    """Accelerator and count, such as `T4:1`."""
    engine: EngineName
    refusal: str = ""
    """Why the engine must not serve; empty if it may."""
    seconds: Mapping[int, float] | None = None
    """Mean seconds of a batch by its number of texts of similar length; None if refused."""
