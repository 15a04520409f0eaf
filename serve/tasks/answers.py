"""What endpoints answer, as values for Python."""

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


Prediction = Label | tuple[Label, ...] | tuple[Entity, ...] | Answer
"""Of one input: a label, with `top_k` so many labels with the best first; entities; an answer."""
