"""Chooses the evaluation rows of a data set without an evaluation split."""

import random
from collections import Counter
from collections.abc import Hashable, Sequence

SHARE = 0.1
"""Share of each label's rows that becomes evaluation rows."""
MOST_ROWS = 2000
"""Most evaluation rows: with 2,000, the 95 % interval of an accuracy is about ±2 points."""
SEED = 42
"""Seed of the random choice, so that each call chooses the same rows."""

Group = list[int]
"""Indices of rows with the same text."""


def hold_back(texts: Sequence[tuple[str, ...]], labels: Sequence[str]) -> list[int]:
    """Returns the sorted indices of the evaluation rows; the same at each call.

    Each label contributes its share of rows, and at least one row if it has two. Rows whose texts
    differ only in case, spaces or order stay in the same split; if they have several labels, they
    stay in the training split.
    """
    groups: dict[Hashable, Group] = {}
    for row, parts in enumerate(texts):
        same = tuple(sorted(" ".join(part.casefold().split()) for part in parts))
        groups.setdefault(same, []).append(row)
    of_label: dict[str, list[Group]] = {label: [] for label in labels}
    for group in groups.values():
        if len({labels[row] for row in group}) == 1:
            of_label[labels[group[0]]].append(group)
    counts = Counter(labels)
    quotas = quotas_of(counts)
    draw = random.Random(SEED)
    held_back: list[int] = []
    for label, candidates in of_label.items():
        draw.shuffle(candidates)
        held_back += _take(candidates, quotas[label], counts[label])
    return sorted(held_back)


def with_known_labels(held_back: Sequence[int], labels: Sequence[tuple[str, ...]]) -> list[int]:
    """Returns the evaluation rows whose labels other rows have too; the rest goes to training.

    `labels` are those of all rows, any number of them for each.
    """
    chosen = set(held_back)
    known = {name for row, names in enumerate(labels) if row not in chosen for name in names}
    return [row for row in held_back if known.issuperset(labels[row])]


def quotas_of(counts: Counter[str]) -> dict[str, int]:
    """Returns the number of evaluation rows of each label.

    The sum is at most MOST_ROWS, unless there are more labels than that.
    """
    share = min(SHARE, MOST_ROWS / counts.total())
    quotas = {label: max(1, round(share * n)) if n > 1 else 0 for label, n in counts.items()}
    for _ in range(sum(quotas.values()) - MOST_ROWS):
        largest = max(quotas, key=lambda label: quotas[label])
        quotas[largest] = max(1, quotas[largest] - 1)
    return quotas


def _take(groups: Sequence[Group], quota: int, rows: int) -> list[int]:
    """Returns rows of whole groups up to the quota.

    If every group is larger than the quota, it returns the smallest group that leaves a row to
    train on.
    """
    taken: list[int] = []
    for group in groups:
        if len(taken) + len(group) <= quota:
            taken += group
    if taken or not groups or not quota:
        return taken
    smallest = min(groups, key=len)
    return smallest if len(smallest) < rows else []
