"""What the numbers of a run suggest doing, in sentences."""

from collections.abc import Iterator

from jobs.training.events import Metered
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.predict import Measurement, disturbances
from orchestrator.decisions.select import Winner

WAITING, PADDING, COMMUNICATION = 0.1, 0.25, 0.2
"""Shares of a step, or of the tokens, from which on they are worth a word."""
ROOM = 0.5
"""Share of the device's memory that a run leaves free without a word."""
FIXED = 0.4
"""Share of a full run that is not stepping from which on a longer run would pay."""


def advise(plan: Plan, winner: Winner, measured: Measurement | None) -> tuple[str, ...]:
    """What holds the winner up, and what could be changed; empty when nothing stands out."""
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
            f"{speed.padding_share:.0%} of the tokens are padding: a larger"
            " train.global_batch_size lets rows of like length meet"
        )
    if (speed.communication_share or 0.0) > COMMUNICATION:
        yield (
            f"workers spend {speed.communication_share:.0%} of a step on exchanging gradients: use"
            " fewer of them, or a larger train.global_batch_size"
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
            f"{left:.0%} of the memory stays free while a step takes {candidate.accumulation}"
            " passes: search larger values of train.micro_batch_size"
        )
    prediction = winner.prediction
    if prediction and prediction.phases:
        share = 1 - prediction.phases.steps / prediction.phases.total
        if share > FIXED:
            yield (
                f"{share:.0%} of the run is starting, judging and saving: the choice of hardware"
                " matters less than for a longer run"
            )


def _trust(measured: Measurement) -> Iterator[str]:
    if disturbances(measured.speed):
        yield "the machine was not quiet while it was measured: trust the intervals, not the means"
    elif not measured.is_steady:
        yield "steps were not equally fast during the probe; a longer sweep.probe may tell more"
