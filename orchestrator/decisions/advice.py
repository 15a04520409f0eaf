"""Derives advice from the measurements of a run."""

from collections.abc import Iterator

from jobs.training.events import Metered
from orchestrator.decisions.measurement import Measurement, disturbances
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.select import Winner

WAITING, PADDING, COMMUNICATION = 0.1, 0.25, 0.2
"""Shares of a step, or of the tokens for padding, above which advice is given."""
ROOM = 0.5
"""Share of free device memory above which advice is given."""
FIXED = 0.4
"""Share of a full run outside its steps above which advice is given."""


def advise(plan: Plan, winner: Winner, measured: Measurement | None) -> tuple[str, ...]:
    """Returns sentences on the winner's bottlenecks and their remedies; empty without any."""
    speed = measured.speed if measured else None
    if measured is None or speed is None:
        return ()
    return (*_bottlenecks(speed), *_sizes(plan, winner, speed), *_trust(measured))


def _bottlenecks(speed: Metered) -> Iterator[str]:
    if speed.data_wait_share > WAITING:
        yield (
            f"steps wait for data {speed.data_wait_share:.0%} of the time: put the rows on a faster"
            " disk, or shorten data.max_length so that they fit on the device"
        )
    if speed.padding_share > PADDING:
        yield (
            f"{speed.padding_share:.0%} of the tokens are padding: with a larger"
            " train.global_batch_size, batches have rows of more similar lengths"
        )
    if (speed.communication_share or 0.0) > COMMUNICATION:
        yield (
            f"workers spend {speed.communication_share:.0%} of a step on exchanging gradients: use"
            " fewer workers, or a larger train.global_batch_size"
        )
    if speed.mode.startswith("eager") and "no GPU" not in speed.mode:
        yield f"steps are not captured ({speed.mode.removeprefix('eager: ')})"


def _sizes(plan: Plan, winner: Winner, speed: Metered) -> Iterator[str]:
    candidate = winner.candidate
    placement = candidate.placement
    left = 1 - speed.peak_memory_gib / placement.memory_gib
    larger = [
        other
        for other in plan.candidates
        if other.placement == placement and other.micro_batch_size > candidate.micro_batch_size
    ]
    if placement.device == "cuda" and left > ROOM and candidate.accumulation > 1 and not larger:
        yield (
            f"{left:.0%} of the memory stays free while a step has {candidate.accumulation}"
            " passes: search larger values of train.micro_batch_size"
        )
    prediction = winner.prediction
    if prediction and prediction.phases:
        share = 1 - prediction.phases.steps / prediction.phases.total
        if share > FIXED:
            yield (
                f"{share:.0%} of the run is start, evaluation and saving: the choice of hardware"
                " matters less than in a longer run"
            )


def _trust(measured: Measurement) -> Iterator[str]:
    if disturbances(measured.speed):
        yield "other load disturbed the measurement: trust the intervals, not the means"
    elif not measured.is_steady:
        yield "step times varied during the probe: a longer sweep.probe is more precise"
