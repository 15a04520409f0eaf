"""Decides whether training compiles its steps where the job says `train.compile: auto`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.placement import Placement
from jobs.spec import JobSpec
from orchestrator.decisions.candidate import Candidate

if TYPE_CHECKING:  # it imports numpy, and `winnow plan` needs none
    from orchestrator.decisions.measurement import Measurement, Prediction

COMPILE_S = 60.0
"""Assumed time of compiling; 34 to 64 s were measured on an H200."""
GAIN = 0.2
"""Share of its steps' time that a run is assumed to save where compiling is worth a probe."""
LEAST_STEPS_S = 2 * COMPILE_S / GAIN
"""Shortest time of all steps for a probe: GAIN then pays for compiling in the probe and the run."""
LARGEST_SPEEDUP = 2.0
"""Speed of compiled steps over that of others, at most; 1.35 to 1.95 were measured on an H200."""
NO_SWEEP = "only the probes of a sweep measure whether that pays"


def is_open(spec: JobSpec, placement: Placement) -> bool:
    """Returns whether a probe decides about compiling on a placement."""
    return _is_auto(spec, placement) and spec.sweep is not None and placement.workers == 1


def remarks(spec: JobSpec, placements: Iterable[Placement]) -> tuple[str, ...]:
    """Returns sentences on how `auto` is decided; none where no GPU is planned."""
    gpus = [placement for placement in placements if _is_auto(spec, placement)]
    if gpus and spec.sweep is None:
        return (f"steps are not compiled: {NO_SWEEP}; train.compile: true compiles them",)
    single = ", ".join(placement.name for placement in gpus if placement.workers == 1)
    several = ", ".join(placement.name for placement in gpus if placement.workers > 1)
    found = []
    if single:
        found.append(
            f"a probe decides about compiling: the fastest candidate of {single} is measured"
            f" compiled too if all its steps take more than {_shown(LEAST_STEPS_S)}"
        )
    if several:
        found.append(
            f"steps on {several} are not compiled: that is not yet reliable on several GPUs;"
            " train.compile: true compiles them"
        )
    return tuple(found)


def to_probe(
    compiled: Sequence[Candidate], predictions: "Sequence[Prediction]"
) -> tuple[Candidate, ...]:
    """Returns the compiled candidates that are worth a probe.

    On each placement it is the fastest candidate, if its steps take LEAST_STEPS_S and compiling may
    make it the fastest or the cheapest of all.
    """
    by_id = {replace(candidate, compiled=False).id: candidate for candidate in compiled}
    chosen = []
    for name in dict.fromkeys(candidate.placement.name for candidate in compiled):
        here = [p for p in predictions if p.candidate.startswith(f"{name}/")]
        fastest = min(here, key=lambda p: p.time_s.mean, default=None)
        if fastest and fastest.candidate in by_id and _may_pay(fastest, predictions):
            chosen.append(by_id[fastest.candidate])
    return tuple(chosen)


def verdict(
    spec: JobSpec,
    winner: Candidate,
    measurements: "Sequence[Measurement]",
    predictions: "Sequence[Prediction]",
) -> str:
    """Returns whether a winner's steps are compiled, and why; empty without a GPU or `auto`."""
    if not _is_auto(spec, winner.placement):
        return ""
    if winner.placement.workers > 1:
        return "not compiled: that is not yet reliable on several GPUs"
    if spec.sweep is None:
        return f"not compiled: {NO_SWEEP}"
    by_id = {measured.candidate: measured for measured in measurements}
    plain = replace(winner, compiled=False).id
    slow, fast = by_id.get(plain), by_id.get(replace(winner, compiled=True).id)
    found = gain(slow, fast) if slow and fast else _why_unprobed(plain, predictions)
    return f"{'' if winner.compiled else 'not '}compiled: {found}"


def gain(slow: "Measurement", fast: "Measurement") -> str:
    """Returns how a candidate's measurement with compiled steps compares with that without."""
    if slow.step_s is None or fast.step_s is None:
        return fast.fault
    text = f"{slow.step_s.mean / fast.step_s.mean:.2f} times the speed"
    if slow.speed and fast.speed:
        compile_s = max(0.0, fast.speed.capture_s - slow.speed.capture_s)
        text += f", {compile_s:.0f} s to compile"
    return text


def _is_auto(spec: JobSpec, placement: Placement) -> bool:
    return spec.train.compile == "auto" and placement.device == "cuda"


def _may_pay(own: "Prediction", found: "Sequence[Prediction]") -> bool:
    """Returns whether a run is long enough, and with compiled steps may be the best of all."""
    if own.phases is None or own.phases.steps < LEAST_STEPS_S:
        return False
    share = 1 - own.phases.steps * (1 - 1 / LARGEST_SPEEDUP) / own.time_s.mean
    if share * own.time_s.mean <= min(p.time_s.mean for p in found):
        return True
    costs = [p.cost_usd.mean for p in found if p.cost_usd]
    return own.cost_usd is not None and share * own.cost_usd.mean <= min(costs)


def _why_unprobed(plain: str, predictions: "Sequence[Prediction]") -> str:
    phases = next((p.phases for p in predictions if p.candidate == plain), None)
    if phases is None or phases.steps >= LEAST_STEPS_S:
        return "no probe measured it"
    return f"all steps take {_shown(phases.steps)}, and it may pay from {_shown(LEAST_STEPS_S)}"


def _shown(seconds: float) -> str:
    return f"{seconds / 60:.2g} min"
