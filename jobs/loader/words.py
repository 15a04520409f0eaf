"""Suggests the field or value that a user meant by an unknown word."""

import difflib
from collections.abc import Iterable

from jobs.loader.fields import all_field_paths
from jobs.loader.habits import NOT_CHOSEN, OTHER_TRAINERS, OTHER_VALUES
from jobs.spec import task_registry

LEAST_SIMILARITY = 0.75
"""Least similarity of a suggestion to the written word; 1 means equal."""
MOST_PLACES = 2
"""Most fields of the same name that a hint lists; a longer list would not help."""


def field_of(word: str) -> str:
    """Returns a clause with the field for a key of another trainer or section; empty if unknown."""
    key = word.lower().replace("-", "_")
    if key in OTHER_TRAINERS:
        return f"; write {OTHER_TRAINERS[key]}"
    if key in NOT_CHOSEN:
        return f"; remove it: {NOT_CHOSEN[key]}"
    places = [path for path in all_field_paths() if _leaf(path) == key and "." in path]
    return f"; it stands at {' or '.join(places)}" if 0 < len(places) <= MOST_PLACES else ""


def path_meant(path: str, known: Iterable[str]) -> str:
    """Returns a clause with the field that an unknown dotted path resembles; empty if none does.

    Only the last names are compared: sections have long names, which would make any two fields of
    one section similar.
    """
    key, known = _leaf(path).lower().replace("-", "_"), tuple(known)
    other = OTHER_TRAINERS.get(key, "")
    if other.startswith(known):
        return f"; write {other}"
    leaf = most_similar(key, map(_leaf, known))
    places = [place for place in known if _leaf(place) == leaf]
    best = difflib.get_close_matches(path.lower(), places, n=1, cutoff=0.0)
    return f"; did you mean {best[0]!r}?" if best else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a `; did you mean` clause for a similar word; empty if there is none."""
    known = tuple(known)
    key = word.lower().replace("_", "-")
    named = (task.name for task in task_registry.every() if key in task.other_names)
    other = next(named, OTHER_VALUES.get(key, ""))
    if other in known:
        return f"; write {other!r}"
    match = most_similar(word.lower(), known)
    return f"; did you mean {match!r}?" if match else ""


def value_meant(word: str, known: Iterable[str]) -> str:
    """Returns the known value that a word stands for; the word itself if there is none."""
    known = tuple(known)
    other = OTHER_VALUES.get(word.lower().replace("_", "-"), "")
    return other if other in known else most_similar(word.lower(), known) or word


def most_similar(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word most similar to another; None if no word is similar enough."""
    known = tuple(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=LEAST_SIMILARITY)
    return next(iter(close), None) or next((k for k in known if _is_one_slip(word, k)), None)


def _is_one_slip(word: str, other: str) -> bool:
    """Returns whether two words differ by one letter added, removed or changed, or two swapped."""
    start = _common_prefix(word, other)
    first, second = word[start:], other[start:]
    end = _common_prefix(first[::-1], second[::-1])
    first, second = first[: len(first) - end], second[: len(second) - end]
    return max(len(first), len(second)) <= 1 or (len(first) == 2 and first == second[::-1])


def _common_prefix(word: str, other: str) -> int:
    """Returns the length of the common prefix of two words."""
    pairs = enumerate(zip(word, other, strict=False))
    shortest = min(len(word), len(other))
    return next((index for index, (first, second) in pairs if first != second), shortest)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]
