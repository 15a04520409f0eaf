"""How good predictions have been, over all receipts of a storage folder."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predicted against actual time of some fits, and memory where it was predicted."""

    sku: str
    """`all` for every SKU together."""
    fits: int
    mape: float
    """Mean absolute error of time as a share of the actual time."""
    bias: float
    """Mean signed error: above 0 when fits take longer than predicted."""
    coverage: float
    """Share of fits whose time lay in the predicted interval, which is meant to hold 95 %."""
    memory_mape: float | None
    """The same of peak memory before anything ran; None where no size was known."""
    probed_memory_mape: float | None
    """The same of the peak that the probe found."""


def accuracy(receipts: Sequence[Receipt]) -> tuple[Accuracy, ...]:
    """One row for each SKU, and one for all; empty when nothing can be compared."""
    usable = [receipt for receipt in receipts if receipt.is_comparable and not receipt.simulated]
    groups = {"all": usable} if usable else {}
    for receipt in usable:
        groups.setdefault(receipt.sku or receipt.winner.split(":")[0], []).append(receipt)
    return tuple(_summarise(name, group) for name, group in groups.items())


def _summarise(name: str, receipts: Sequence[Receipt]) -> Accuracy:
    shares = [
        (r.actual_time_s - r.predicted_time_s.mean) / r.actual_time_s
        for r in receipts
        if r.predicted_time_s
    ]
    planned = [_off(r.memory.expected_gib, r) for r in receipts if r.memory]
    probed = [_off(r.probed_memory_gib, r) for r in receipts if r.probed_memory_gib]
    return Accuracy(
        sku=name,
        fits=len(receipts),
        mape=statistics.fmean(abs(share) for share in shares),
        bias=statistics.fmean(shares),
        coverage=statistics.fmean(bool(r.is_within_interval) for r in receipts),
        memory_mape=_mean(planned),
        probed_memory_mape=_mean(probed),
    )


def _off(predicted_gib: float, receipt: Receipt) -> float | None:
    actual = receipt.actual_memory_gib
    return abs(predicted_gib / actual - 1) if actual else None


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None
