"""Predicts the time and cost of the full run from the measured speed of a candidate."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from jobs.spec import JobSpec
from jobs.spec.quantities import Cadence
from jobs.training.data import batches
from jobs.training.events import Overheads
from jobs.training.probing.timing import GiveUp, Limit
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Interval, Launch, Measurement, Phases, Prediction

STEP_SHARE = 0.04
"""Relative half-width added for steps: processes on the same machine differ by as much in speed,
and a short probe does not see slow drifts."""
FIXED_SHARE = 0.25
"""Relative half-width added for phases that are measured only once, such as the start."""
APART = 0.03
"""Relative difference between two probes of a candidate above which a third one is made."""


def predict_all(
    spec: JobSpec,
    candidates: Sequence[Candidate],
    measurements: Sequence[Measurement],
    launches: Sequence[Launch],
    warm: str = "",
) -> tuple[Prediction, ...]:
    """Predict every candidate with a complete measurement.

    Setup costs that only the first probe of a worker group has are added to the other candidates,
    whose full runs have them too. `warm` names the placement whose workers run already, so that a
    run there starts none.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    found = [m for m in measurements if m.candidate in by_id]
    predictions = []
    for measured in found:
        candidate = by_id[measured.candidate]
        name = candidate.placement.name
        beside = [m.overheads for m in found if m.candidate.startswith(f"{name}/") and m.overheads]
        started = [launch for launch in launches if launch.placement == name != warm]
        predictions.append(_predict(spec, candidate, measured, beside, started))
    return tuple(prediction for prediction in predictions if prediction)


def _predict(
    spec: JobSpec,
    candidate: Candidate,
    measured: Measurement,
    beside: Sequence[Overheads],
    launches: Sequence[Launch],
) -> Prediction | None:
    """Returns time = start + setup + capture + steps + evaluations + checkpoints + end."""
    own = measured.overheads
    if measured.step_s is None or own is None:
        return None
    stepping_s = measured.step_s.mean * measured.steps
    earlier = _evaluations(spec, measured, measured.steps) - 1
    phases = Phases(
        start=_median(o.start_s for o in launches if o.start_s is not None),
        setup=max(o.setup_s for o in beside) + own.capture_s + max(o.first_use_s for o in beside),
        steps=stepping_s,
        evaluations=earlier * own.eval_s + own.final_eval_s,
        checkpoints=_checkpoints_s(spec, measured, own, stepping_s) + own.scoring_s,
        end=own.metering_s + _median(o.end_s for o in launches if o.end_s is not None),
    )
    half_s = math.hypot(
        measured.step_s.half_width * measured.steps,
        STEP_SHARE * stepping_s,
        FIXED_SHARE * (phases.total - stepping_s),
    )
    time_s = Interval(max(0.0, phases.total - half_s), phases.total, phases.total + half_s)
    price = candidate.placement.price_usd_per_hour
    return Prediction(
        candidate=candidate.id,
        steps=measured.steps,
        time_s=time_s,
        cost_usd=None if price is None else time_s.scaled(price / 3600),
        phases=phases,
        peak_memory_gib=measured.peak_memory_gib,
    )


def settle(measured: Sequence[Measurement]) -> Measurement:
    """Combine several measurements of a candidate.

    Returns the first with the median step time, and an interval that contains all means. Capturing
    takes as long as in the last, which finds in caches what the first has compiled.
    """
    steps = [m.step_s for m in measured if m.step_s]
    if len(steps) < 2:
        return measured[0]
    median = statistics.median(step.mean for step in steps)
    half_s = max(
        statistics.median(step.half_width for step in steps),
        *(abs(step.mean - median) for step in steps),
    )
    step_s = Interval(max(0.0, median - half_s), median, median + half_s)
    own, last_s = measured[0].overheads, measured[-1].captured_s
    if own and last_s is not None:
        own = dataclasses.replace(own, capture_s=min(own.capture_s, last_s))
    return dataclasses.replace(measured[0], step_s=step_s, overheads=own)


def are_apart(measured: Sequence[Measurement]) -> bool:
    """Returns whether probes of a candidate differ by more than APART and by more than chance."""
    steps = [m.step_s for m in measured if m.step_s]
    if len(steps) < 2:
        return False
    low, high = min(steps, key=lambda s: s.mean), max(steps, key=lambda s: s.mean)
    chance = math.hypot(low.half_width, high.half_width)
    return high.mean - low.mean > max(APART * low.mean, chance)


def give_up(
    candidate: Candidate,
    plan: Sequence[Candidate],
    measured: Sequence[Measurement],
    found: Sequence[Prediction],
    *,
    has_trials: bool,
) -> GiveUp:
    """Returns what the probe of a candidate compares it with, to stop early.

    `measured` and `found` are what is known before its worker group starts. `has_trials`: whether
    trials judge what changes learning, in one precision alone.
    """
    precisions = {candidate.precision}
    if not has_trials or _is_decided_here(candidate, plan, measured, found):
        precisions = {other.precision for other in plan}
    steps = next((m.steps for m in measured if m.steps), None)
    compared = {other.id: other for other in plan if other.precision in precisions}
    outside = _limit(candidate, steps, compared, found) if steps else None
    return GiveUp(frozenset(precisions), outside)


def _is_decided_here(
    candidate: Candidate,
    plan: Sequence[Candidate],
    measured: Sequence[Measurement],
    found: Sequence[Prediction],
) -> bool:
    """Returns whether no other placement can make the trials run in a candidate's precision.

    Trials run in the precision of the cheapest candidate, and only its candidates can be chosen. If
    that one is on this placement, it beats slower ones of its precision here; if it were on another
    one, which is cheap and slow, a candidate here could be chosen for its time although another
    precision is faster still.
    """
    done, cheapest = {m.candidate for m in measured}, min(found, key=cost_rank, default=None)
    return not any(
        other.id not in done or (cheapest is not None and other.id == cheapest.candidate)
        for other in plan
        if other.precision == candidate.precision and other.placement != candidate.placement
    )


def cost_rank(prediction: Prediction) -> tuple[float, float]:
    """Ranks predictions: the cheapest first, or without prices the fastest."""
    cost = prediction.cost_usd.mean if prediction.cost_usd else math.inf
    return cost, prediction.time_s.mean


def _limit(
    candidate: Candidate, steps: int, known: Mapping[str, Candidate], found: Sequence[Prediction]
) -> Limit | None:
    """Returns the step time from which on a candidate is slower and dearer than a known one.

    Returns None without a comparable candidate.
    """
    price = candidate.placement.price_usd_per_hour
    limits = []
    for prediction in found:
        if prediction.candidate not in known:
            continue
        limit_s = prediction.time_s.high
        if price is not None and prediction.cost_usd is not None:
            same_cost_s = prediction.cost_usd.high / price * 3600 if price else math.inf
            limit_s = max(limit_s, same_cost_s)
        elif price is not None or prediction.cost_usd is not None:
            continue
        limits.append(Limit(limit_s / steps, prediction.candidate))
    return min(limits, key=lambda limit: limit.step_s, default=None)


def _median(values: Iterable[float]) -> float:
    """Returns the median, which ignores the slow start of a cluster's first group; 0 if empty."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def _checkpoints_s(
    spec: JobSpec, measured: Measurement, own: Overheads, stepping_s: float
) -> float:
    """Returns the time of saving; each save first waits until the previous one is written."""
    count = _times_due(spec.train.checkpoint.every, spec, measured, stepping_s)
    write_s = own.final_save_s - own.save_s
    waiting_s = max(0.0, write_s - stepping_s / count)
    return (count - 1) * (own.save_s + waiting_s) + own.final_save_s


def _evaluations(spec: JobSpec, measured: Measurement, steps: int) -> int:
    stepping_s = (measured.step_s.mean if measured.step_s else 0.0) * steps
    return _times_due(spec.train.eval.every, spec, measured, stepping_s)


def _times_due(every: Cadence, spec: JobSpec, measured: Measurement, stepping_s: float) -> int:
    """Returns how often a cadence is due over a run, including its end."""
    if every.unit == "second":
        return 1 + int(stepping_s / every.value)
    per_epoch = batches.steps_per_epoch(measured.train_rows, spec.train.global_batch_size)
    interval = every.value * (per_epoch if every.unit == "epoch" else 1)
    return max(1, math.ceil(measured.steps / max(1.0, interval)))
