"""How a new version of a model does beside the old one: what rules of a gate are held against."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """How a new version does beside the old one, in one regard."""

    value: float
    """What the rule's bound is compared with."""
    sentence: str
    """What is said where the bound does not hold."""
    is_chance: bool = False
    """Whether the difference may be an accident."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions of a model on evaluation rows."""

    summary: str
    findings: Mapping[str, Finding]
    """By the name of a gate's rule."""
