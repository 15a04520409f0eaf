"""Groups the tokens of a text into words, and words into entities, as transformers' pipeline does.

This is the pipeline's aggregation strategy "first": the label of a word is that of its first token,
which is the token that training labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.tasks.token_classification.tags import OUTSIDE

Offsets = tuple[int, int]
"""First character of a token, and the one after its last."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A stretch of a text and what it names."""

    entity: str
    start: int
    """First character, counted in code points."""
    end: int
    """The character after the last."""
    score: float = 1.0
    """Mean probability of the labels of its words."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, with the label of its first token."""

    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WordRule:
    """Decides which tokens begin a word, from the kind of tokenizer."""

    has_prefix: bool
    """True if tokens inside a word have a prefix, such as ## of WordPiece; else spaces decide."""
    unknown_id: int | None
    """Token that stands for unknown text, which always begins a word."""

    @classmethod
    def of(cls, fast: Any, unknown_id: int | None) -> "WordRule":
        """Returns the rule for a tokenizer of the library `tokenizers`."""
        return cls(bool(getattr(fast.model, "continuing_subword_prefix", None)), unknown_id)

    def begins_word(self, text: str, token_id: int, token: str, offsets: Offsets) -> bool:
        """Returns whether a token begins a word of the text.

        Source: `gather_pre_entities` of transformers' TokenClassificationPipeline, which separates
        words without a prefix by spaces alone; here line breaks and other white space do too.
        """
        start, end = offsets
        if token_id == self.unknown_id:
            return True
        if self.has_prefix:
            return len(token) == len(text[start:end])
        return start == 0 or any(map(str.isspace, text[start - 1 : start + 1]))


def without_spaces(text: str, offsets: Offsets) -> Offsets:
    """Returns offsets without white space at both ends, which some tokenizers put into a token."""
    start, end = offsets
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def groups_of(begins: Sequence[bool]) -> list[range]:
    """Returns the tokens of each word; the first token begins one anyway."""
    firsts = [at for at, is_first in enumerate(begins) if is_first or at == 0]
    return [
        range(first, last) for first, last in zip(firsts, [*firsts[1:], len(begins)], strict=True)
    ]


def entities_of(words: Sequence[Word]) -> list[Entity]:
    """Returns the entities of a text's words, in their order.

    A word with I- continues the entity of the word before if it names the same; else it begins one.
    Source: `group_entities` of transformers' TokenClassificationPipeline.
    """
    groups: list[list[Word]] = []
    for word in words:
        continues = groups and not word.label.startswith("B-")
        if continues and _entity(groups[-1][-1].label) == _entity(word.label):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [
        Entity(
            entity=_entity(group[0].label),
            start=group[0].start,
            end=group[-1].end,
            score=sum(word.score for word in group) / len(group),
        )
        for group in groups
        if group[0].label != OUTSIDE
    ]


def _entity(label: str) -> str:
    return label[2:] if label[:2] in ("B-", "I-") else label
