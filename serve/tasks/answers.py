"""What endpoints answer, as values for Python."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """What a classifier says of an input."""

    label: str
    score: float
    """Probability, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a language model writes."""

    text: str
    finish_reason: str
    """`stop` where the model or a stop text ended it, `length` where tokens or time ran out."""


@dataclass(frozen=True, slots=True)
class Values:
    """What a regression says of an input: a number for each column that it learnt."""

    by_name: Mapping[str, float]

    @property
    def value(self) -> float:
        """The number of a regression with one column; raises ValueError if there are several."""
        (found,) = self.by_name.values()
        return found


@dataclass(frozen=True, slots=True)
class Entity:
    """What a classifier of tokens finds in a text."""

    entity: str
    start: int
    """First character, counted in code points."""
    end: int
    """The character after the last."""
    score: float
    """Mean probability of its words, from 0 to 1."""
    text: str


Vector = tuple[float, ...]
"""The numbers of a text's embedding."""
Prediction = Label | tuple[Label, ...] | tuple[Entity, ...] | Values | Answer | Vector
"""Of one input: a label; several labels, the best first, for `top_k` or of a multi-label model;
entities; numbers; an answer; or a vector."""
