"""Formats a receipt, a speed, a time and a cost for people."""

from collections.abc import Callable

from jobs.spec.quantities import format_metric, format_metrics
from jobs.training.events import Metered
from jobs.training.harness import HarnessResult
from orchestrator.decisions.measurement import Interval
from orchestrator.records.receipt import Receipt


def receipt_text(receipt: Receipt) -> str:
    """Returns a receipt in lines for the terminal."""
    predicted_time = show_interval(receipt.predicted_time_s, show_time)
    predicted_cost = show_interval(receipt.predicted_cost_usd, show_cost)
    lines = [
        f"receipt of {receipt.run}" + (" (simulated)" if receipt.simulated else ""),
        f"winner    {receipt.winner}",
        f"{'':10}{'predicted':32}actual",
        f"time      {predicted_time:32}{show_time(receipt.actual_time_s)}",
        f"cost      {predicted_cost:32}{show_cost(receipt.actual_cost_usd)}",
    ]
    if receipt.resumed:
        lines.append(f"{'':10}training was resumed: the actual time covers only its last part")
    if receipt.stopped_at is not None:
        lines.append(f"{'':10}the budget was used up after step {receipt.stopped_at}")
    if receipt.best is not None:
        lines.append(f"training  {receipt.best}")
    if receipt.time_error is not None:
        inside = "inside" if receipt.is_within_interval else "outside"
        lines.append(f"{'':10}{receipt.time_error:+.1%} off, {inside} the predicted interval")
    lines += _memory_lines(receipt)
    if receipt.proof:
        cost = receipt.proof_cost_usd
        paid = "" if cost is None else f", {show_cost(cost)}"
        lines.append(
            f"proof     published model scores {receipt.proof.rows} evaluation rows as in training,"
            f" up to {receipt.proof.difference:.1g} ({show_time(receipt.proof.seconds)}{paid})"
        )
    lines += [f"{'':10}disturbed: {text}" for text in receipt.disturbances]
    if receipt.sweep_time_s:
        cost = receipt.sweep_cost_usd
        paid = "" if cost is None else f", {show_cost(cost)}"
        lines.append(f"sweep     {show_time(receipt.sweep_time_s)}{paid}")
    lines += _speed_lines(receipt)
    lines.append(f"quality   {format_metrics(receipt.own_metrics)}")
    return "\n".join([*lines, *_harness_lines(receipt)])


def _harness_lines(receipt: Receipt) -> list[str]:
    found, cost = receipt.harness, receipt.harness_cost_usd
    if found is None:
        return []
    paid = "" if cost is None else f", {show_cost(cost)}"
    lines = [f"harness   {show_time(found.seconds)}{paid}: {harness_text(found)}"]
    for name, value in found.values.items():
        error = f" \N{PLUS-MINUS SIGN} {found.errors[name]:.4f}" if name in found.errors else ""
        lines.append(f"{'':10}{name} {format_metric(value)}{error}")
    return lines


def harness_text(found: HarnessResult) -> str:
    """Returns the tasks of a harness with their rows, or why there are no numbers."""
    if found.failure:
        return f"no numbers, because {found.failure}"
    return ", ".join(f"{task} on {rows} rows" for task, rows in found.rows.items())


def _memory_lines(receipt: Receipt) -> list[str]:
    actual = receipt.actual_memory_gib
    if actual is None or receipt.memory is None:
        return []
    estimate = receipt.memory
    planned = f"{estimate.expected_gib:.1f} [{estimate.low_gib:.1f}, {estimate.high_gib:.1f}] GiB"
    probed = receipt.probed_memory_gib
    text = planned if probed is None else f"{planned}, {probed:.1f} probed"
    return [f"memory    {text:32}{actual:.1f} GiB"]


def _speed_lines(receipt: Receipt) -> list[str]:
    found = [] if receipt.speed is None else [f"speed     {speed_text(receipt.speed)}"]
    return [*found, f"{'':10}{receipt.compiling}"] if receipt.compiling else found


def speed_text(speed: Metered) -> str:
    """Returns the speed of a fit in one line."""
    parts = [
        f"{speed.samples_per_s:,.0f} samples/s",
        f"{speed.tokens_per_s:,.0f} tokens/s",
        f"{speed.padding_share:.0%} padding",
        f"step {speed.step_s_p50 * 1e3:.1f} ms (p95 {speed.step_s_p95 * 1e3:.1f})",
        f"{speed.peak_memory_gib:.1f} GiB",
    ]
    if speed.communication_share:
        parts.append(f"{speed.communication_share:.0%} communication")
    if speed.data_wait_share >= 0.01:
        parts.append(f"{speed.data_wait_share:.0%} waiting for data")
    if speed.gpu_utilization is not None:
        parts.append(f"GPU {speed.gpu_utilization:.0%} busy")
    if speed.power_w is not None:
        parts.append(f"{speed.power_w:.0f} W")
    if speed.mfu is not None:
        parts.append(f"MFU {speed.mfu:.0%}")
    return f"{speed.mode}: {', '.join(parts)}"


def show_time(seconds: float | None) -> str:
    """Returns a time in seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def show_cost(usd: float | None) -> str:
    """Returns an amount in US dollars, with enough digits for small runs."""
    if usd is None:
        return "no price"
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


def show_interval(interval: Interval | None, show: Callable[[float], str]) -> str:
    """Returns a mean with the bounds of its interval, each formatted by `show`."""
    if interval is None:
        return "not predicted"
    return f"{show(interval.mean)} [{show(interval.low)}, {show(interval.high)}]"
