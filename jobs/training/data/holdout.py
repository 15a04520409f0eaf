"""Decides which rows are held back to judge by."""

import random
from collections import Counter
from collections.abc import Hashable, Sequence

SHARE = 0.1
"""Share of each label's rows that is held back."""
MOST_ROWS = 2000
"""Most rows that are held back: their accuracy is then known to two points."""
SEED = 42
"""Of the draw, so that the same rows are held back at each call."""

Group = list[int]
"""Numbers of the rows with the same text."""


def hold_back(texts: Sequence[tuple[str, ...]], labels: Sequence[str]) -> list[int]:
    """Returns the numbers of the rows to judge by, in order and the same at each call.

    Each label gives its share of rows, and one at least if it has two. Rows whose texts differ in
    case, spaces or order alone stay together, and are trained on if they have several labels.
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


def quotas_of(counts: Counter[str]) -> dict[str, int]:
    """Returns how many rows of each label are held back, MOST_ROWS in all if labels are fewer."""
    share = min(SHARE, MOST_ROWS / counts.total())
    quotas = {label: max(1, round(share * n)) if n > 1 else 0 for label, n in counts.items()}
    for _ in range(sum(quotas.values()) - MOST_ROWS):
        largest = max(quotas, key=lambda label: quotas[label])
        quotas[largest] = max(1, quotas[largest] - 1)
    return quotas


def _take(groups: Sequence[Group], quota: int, rows: int) -> list[int]:
    """Groups of rows up to the quota, else the smallest group that leaves a row to train on."""
    taken: list[int] = []
    for group in groups:
        if len(taken) + len(group) <= quota:
            taken += group
    if taken or not groups or not quota:
        return taken
    smallest = min(groups, key=len)
    return smallest if len(smallest) < rows else []
