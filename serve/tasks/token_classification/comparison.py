"""Compares the entities that two versions find in labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.tasks.token_classification.words import Entity, Word, entities_of, without_spaces
from serve.batching.rows import Tokenizer
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.request_bodies import fitting
from serve.tasks.text_classification.endpoint import LabelCounts
from serve.tasks.token_classification.schemas import MAX_CHARACTERS
from serve.version import ModelVersion

Found = frozenset[tuple[str, int, int]]
"""Entities of a text: what each names, its first character, and the one after its last."""


@dataclass(frozen=True, slots=True)
class LabelledText:
    """An evaluation text with its entities."""

    text: str
    entities: Found
    end: int
    """Characters of it that training read; it cuts longer texts."""

    def within(self, entities: Sequence[Entity]) -> Found:
        """Returns the entities that lie where training read the text."""
        return frozenset((e.entity, e.start, e.end) for e in entities if e.end <= self.end)


def evaluation(version: ModelVersion) -> list[LabelledText]:
    """Returns a version's evaluation texts, cut to what one request can hold; empty without rows.

    An entity ends with the last token of its last word, as the words of the rows divide the text.
    """
    from jobs.training import eval_sample  # imports torch
    from jobs.training.data.tokens import IGNORED

    rows = eval_sample.read(Path(version.path))
    if not rows:
        return []
    tokenizer, found = Tokenizer(Path(version.path), version.max_length), []
    for row in rows:
        (text,) = row.texts
        words: list[Word] = []
        for label, offsets in zip(row.token_labels, tokenizer.offsets(text), strict=True):
            start, end = without_spaces(text, offsets)
            if label != IGNORED:
                words.append(Word(version.labels[label], 1.0, start, end))
            elif words and start < end:
                words[-1] = Word(words[-1].label, 1.0, words[-1].start, end)
        shown = fitting(text, MAX_CHARACTERS)
        whole = LabelledText(shown, frozenset(), min(words[-1].end, len(shown)))
        found.append(LabelledText(shown, whole.within(entities_of(words)), whole.end))
    return found


def compare(old: Sequence[Found], new: Sequence[Found], right: Sequence[Found]) -> Comparison:
    """Compares the entities of two versions, given the right entities of the same texts.

    The change of F1 counts as chance if the numbers of texts that only one version reads without
    a fault do not differ significantly.
    """
    rows = list(zip(old, new, right, strict=True))
    counts = LabelCounts(
        rows=len(rows),
        agreeing=sum(a == b for a, b, _ in rows),
        only_old_right=sum(a == c != b for a, b, c in rows),
        only_new_right=sum(b == c != a for a, b, c in rows),
    )
    if not counts.rows:
        return Comparison("no evaluation rows", {})
    change = f1(new, right) - f1(old, right)
    share = counts.agreeing / counts.rows
    changes = f"its f1 of entities changes by {change:+.3f} on {counts.rows} texts"
    same = f"it finds the old version's entities in {share:.1%} of {counts.rows} texts"
    metrics = {
        "f1": ComparedMetric(change, changes, counts.is_chance),
        "agreement": ComparedMetric(share, same),
    }
    return Comparison(f"f1 {change:+.3f}", metrics)


def f1(found: Sequence[Found], right: Sequence[Found]) -> float:
    """Returns the F1 of entities over all texts; 1 if there are none and none is found."""
    both = sum(len(a & b) for a, b in zip(found, right, strict=True))
    total = sum(map(len, found)) + sum(map(len, right))
    return 2 * both / total if total else 1.0
