"""Summarises the errors of predictions over receipts."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of predicted time and memory over several fits."""

    sku: str
    """SKU, or `all` for every SKU together."""
    fits: int
    mape: float
    """Mean absolute error of the time, as a share of the actual time."""
    bias: float
    """Mean signed error of the time as a share; positive if fits take longer than predicted."""
    coverage: float
    """Share of fits whose time lies in the predicted interval; the target is 95 %."""
    memory_mape: float | None
    """Mean absolute relative error of the planned peak memory; None without an estimate."""
    probed_memory_mape: float | None
    """Mean absolute relative error of the peak memory that the probe measured."""


def accuracy(receipts: Sequence[Receipt]) -> tuple[Accuracy, ...]:
    """Returns one row for all comparable receipts, then one for each SKU; empty without any."""
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
