"""Precision, recall and F1 of entities, exact over any split of the rows.

An entity counts as found if type, first and last word are right: seqeval's strict mode with the
scheme IOB2, in which an I- that continues no entity is none.
"""

import numpy as np
import torch
from numpy.typing import NDArray

Counts = NDArray[np.float64]
"""(3, entities): entities of the rows, predicted ones, and those that are both."""


def compute(counts: Counts) -> dict[str, float]:
    """Every metric of entities: over all of them, and the mean of F1 over their types.

    As in seqeval, a share of nothing is 0, and the mean leaves out types that no row has and none
    was predicted.
    """
    true, predicted, both = counts
    occurs = true + predicted > 0
    f1 = 2 * both[occurs] / (true + predicted)[occurs]
    return {
        "precision": _share(both.sum(), predicted.sum()),
        "recall": _share(both.sum(), true.sum()),
        "f1": _share(2 * both.sum(), (true + predicted).sum()),
        "f1_macro": float(f1.mean()) if len(f1) else 0.0,
    }


def count(
    true: torch.Tensor, predicted: torch.Tensor, weights: torch.Tensor, entities: int
) -> torch.Tensor:
    """Counts the entities of rows, (3, entities) in float64, without waiting for the device.

    Args:
        true: Number of the label of each word, (rows, words): 0 outside of entities, 1 + 2 n for
            B- and 2 + 2 n for I- of the entity n. Rows are filled up with 0.
        predicted: Likewise, as predicted.
        weights: Of each row, (rows,); 0 for rows that only fill up a batch.
        entities: Number of types of entities.
    """
    (begins, ends, types), (other_begins, other_ends, other_types) = map(_spans, (true, predicted))
    both = begins & other_begins & (types == other_types) & (ends == other_ends)
    found = torch.zeros(3, entities, dtype=torch.float64, device=true.device)
    parts = ((begins, types), (other_begins, other_types), (both, types))
    for row, (counted, kinds) in zip(found, parts, strict=True):
        amounts = (counted * weights[:, None]).double().flatten()
        row.index_add_(0, kinds.clamp(min=0).flatten(), amounts)
    return found


def _spans(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns where entities begin, the last word of one that begins there plus 1, and its type.

    All are (rows, words); the type outside of entities is -1.
    """
    words = labels.shape[1]
    types = (labels + 1) // 2 - 1
    is_inside = (labels > 0) & (labels % 2 == 0)
    continues = torch.zeros_like(is_inside)
    continues[:, 1:] = is_inside[:, 1:] & (types[:, 1:] == types[:, :-1])
    places = torch.arange(words, device=labels.device).expand_as(labels)
    breaks = torch.where(continues, words, places)  # a word that continues no entity, or the end
    nearest = breaks.flip(1).cummin(dim=1).values.flip(1)
    ends = torch.full_like(nearest, words)
    ends[:, :-1] = nearest[:, 1:]
    return labels % 2 == 1, ends, types


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
