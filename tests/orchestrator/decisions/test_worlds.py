"""Sweeps of simulated worlds whose speeds the test knows and the decisions must find out.

A stand-in for a worker group steps through probes as jobs.training.probing.probe does, with the
same rules for giving up, and counts the accelerator time that they take.
"""

import math
import random
from collections.abc import Iterator, Sequence

import pytest

from jobs.spec import JobSpec
from jobs.spec.train import Precision
from jobs.training.probing.timing import Limit
from orchestrator.decisions import predict, search, select
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Interval, Launch, Measurement, Prediction
from orchestrator.decisions.plan import Plan
from tests.builders import inventory, job, overheads, plan_of, sweep, trial

SKUS = ("T4", "V100-16GB", "L4", "L40S", "A100-40GB", "H100-SXM")
STEPS, NOISE = 4_000, 0.003
RARE = (841, 1120, 1221)
"""Worlds whose winner would change if precisions were compared on every placement."""
START_S, WARMUP_S, WINDOW_S, PROBE_S, OTHER_S = 12.0, 5.0, 2.0, 10.0, 4.0


class World:
    """Speeds, memory and prices of six accelerators, drawn anew for each seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.speed = {sku: self.draw.uniform(1, 12) for sku in SKUS}
        self.half = {sku: self.draw.uniform(2, 60) for sku in SKUS}
        self.wide = {sku: self.draw.uniform(0.2, 0.9) for sku in SKUS}
        self.holds = {sku: self.draw.choice([16, 32, 64, 64]) for sku in SKUS}
        prices = {sku: self.speed[sku] * self.draw.uniform(0.2, 0.5) for sku in SKUS}
        limit = sorted(prices.values())[4]
        self.limit_s = self.draw.uniform(900, 1800)
        self.spec: JobSpec = job(
            train__global_batch_size=64,
            prices=prices,
            resources={
                "any_of": [{"accelerators": f"{sku}:1"} for sku in SKUS],
                "max_hourly_cost": limit,
            },
            sweep=sweep(
                {
                    "train.micro_batch_size": [8, 16, 32, 64],
                    "train.precision": ["fp32", "fp16", "bf16"],
                },
                objective={"minimize": "cost", "subject_to": {"time": f"<={self.limit_s:.0f}s"}},
            ),
        )
        self.plan: Plan = plan_of(self.spec, inventory(**dict.fromkeys(map(_plain, SKUS), 1)))

    def step_s(self, candidate: Candidate) -> float:
        """The truth."""
        sku, micro = candidate.placement.sku, candidate.micro_batch_size
        share = self.wide[sku] if candidate.precision == "fp32" else 1.0
        return (1 + self.half[sku] / micro) / self.speed[sku] / share

    def fits(self, candidate: Candidate) -> bool:
        """Whether memory suffices."""
        return candidate.micro_batch_size <= self.holds[candidate.placement.sku]

    def run_s(self, candidate: Candidate) -> float:
        """How long a full run takes."""
        other = overheads()
        return START_S + other.setup_s + 1.5 + STEPS * self.step_s(candidate) + 8.0


def _plain(sku: str) -> str:
    return sku.replace("-", "_")


def probe(world: World, *, gives_up: bool) -> tuple[list[Measurement], list[Launch], float]:
    """Every candidate, and the accelerator seconds that took."""
    found: list[Measurement] = []
    launches: list[Launch] = []
    spent_s, has_trials = 0.0, bool(search.quality_space(world.spec))
    order = world.plan.probing_order
    for placement in dict.fromkeys(candidate.placement for candidate in order):
        predictions, before = predict.predict_all(world.spec, order, found, launches), list(found)
        launches.append(Launch(placement.name, START_S, 1.0))
        spent_s += START_S
        best: dict[Precision, Limit] = {}
        for candidate in (c for c in order if c.placement == placement):
            rule = predict.give_up(candidate, order, before, predictions, has_trials=has_trials)
            limit = rule.limit(candidate.precision, best) if gives_up else None
            took_s, measured = timed(world, candidate, limit.step_s if limit else math.inf)
            spent_s += took_s
            found.append(measured)
            known = best.get(candidate.precision)
            if measured.step_s is None:
                spent_s += START_S  # a fresh group after running out of memory
            elif not measured.is_given_up and (not known or measured.step_s.high < known.step_s):
                best[candidate.precision] = Limit(measured.step_s.high, candidate.id)
    return found, launches, spent_s


def timed(world: World, candidate: Candidate, limit_s: float) -> tuple[float, Measurement]:
    """Seconds of one probe, and what it finds."""
    if not world.fits(candidate):
        return 2.0, Measurement(candidate.id, None, failure="tried to allocate")
    step_s = world.step_s(candidate)
    seen_s = step_s * random.Random(candidate.id).gauss(1.0, NOISE)
    spent_s = max(WARMUP_S, 10 * step_s) + max(WINDOW_S, step_s)
    given_up = seen_s * 0.9 > limit_s
    if not given_up:
        spent_s += max(PROBE_S, 30 * step_s) - WINDOW_S + OTHER_S
    return spent_s, Measurement(
        candidate=candidate.id,
        step_s=Interval(seen_s * 0.99, seen_s, seen_s * 1.01),
        steps=STEPS,
        overheads=None if given_up else overheads(),
        is_given_up=given_up,
        train_rows=STEPS * 64,
    )


def chosen(world: World, found: Sequence[Measurement], launches: Sequence[Launch]) -> Candidate:
    """What the sweep picks."""
    predictions: tuple[Prediction, ...] = predict.predict_all(
        world.spec, world.plan.candidates, found, launches
    )
    trials = []
    if search.quality_space(world.spec):
        tried = select.quality_candidate(world.plan, predictions)
        trials = [trial(tried.id, lr, accuracy) for lr, accuracy in ((1e-4, 0.8), (1e-3, 0.9))]
    return select.select(world.spec, world.plan, predictions, trials).candidate


def cost(world: World, candidate: Candidate) -> float:
    """Of a full run, in USD."""
    assert candidate.placement.price_usd_per_hour is not None
    return world.run_s(candidate) * candidate.placement.price_usd_per_hour / 3600


def worlds() -> Iterator[World]:
    """Ten of which at least one candidate keeps the limit on time."""
    seed = made = 0
    while made < 10:
        world = World(seed)
        seed += 1
        if any(
            world.fits(c) and world.run_s(c) < 0.8 * world.limit_s for c in world.plan.candidates
        ):
            made += 1
            yield world


@pytest.mark.parametrize("world", list(worlds()), ids=range(10))
def test_the_optimum_is_found_for_a_fraction_of_the_full_grid(world: World) -> None:
    found, launches, spent_s = probe(world, gives_up=True)
    whole_s = sum(world.run_s(c) for c in world.plan.candidates if world.fits(c))
    *_, patient_s = probe(world, gives_up=False)
    picked = chosen(world, found, launches)
    keeps = [c for c in world.plan.candidates if world.fits(c) and world.run_s(c) <= world.limit_s]
    best = min(keeps, key=lambda c: cost(world, c))
    print(f"{spent_s / whole_s:.3f} of the grid, {spent_s / patient_s:.2f} of patient probes")  # noqa: T201
    assert world.run_s(picked) <= world.limit_s
    assert picked.placement.price_usd_per_hour is not None
    assert picked.placement.price_usd_per_hour <= (world.spec.resources.max_hourly_cost or 0)  # type: ignore[union-attr]
    assert spent_s <= 0.25 * whole_s
    assert spent_s < patient_s
    # the safe side of a limit may cost a little: the optimum may lie within its interval
    safe = [c for c in keeps if world.run_s(c) * 1.06 <= world.limit_s] or keeps
    assert cost(world, picked) <= 1.01 * min(cost(world, c) for c in safe), best.id


class SlowPrecision(World):
    """One to three accelerators, some of which compute far slower in some precision."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        skus = self.draw.sample(("T4", "L4", "L40S", "A100-40GB"), self.draw.choice([1, 2, 3]))
        space = {"train.micro_batch_size": [8, 32], "train.precision": ["fp32", "fp16"]}
        trials = {"train.optimizer.lr": [1e-4, 1e-3]} if self.draw.random() < 0.7 else {}
        self.slow = {
            (sku, precision): self.draw.choice([1, 1, 1.5, 4, 20])
            for sku in skus
            for precision in ("fp32", "fp16")
        }
        self.wide = dict.fromkeys(SKUS, 1.0)
        best = self.draw.choice(["time", "cost"])
        self.spec = job(
            train__global_batch_size=64,
            prices={sku: 10 ** self.draw.uniform(-1, 1) for sku in skus},
            resources__any_of=[{"accelerators": f"{sku}:1"} for sku in skus],
            sweep=sweep({**space, **trials}, objective={"minimize": best}),
        )
        self.plan = plan_of(self.spec, inventory(**dict.fromkeys(map(_plain, skus), 1)))

    def step_s(self, candidate: Candidate) -> float:
        """The truth."""
        factor = self.slow[candidate.placement.sku, candidate.precision]
        return super().step_s(candidate) * factor


def test_giving_up_in_favour_of_another_precision_changes_no_winner() -> None:
    across = 0
    for seed in (*range(150), *RARE):
        patient, *_ = probe(SlowPrecision(seed), gives_up=False)
        world = SlowPrecision(seed)
        found, launches, _ = probe(world, gives_up=True)
        gave_up = {m.candidate.rpartition("/")[2] for m in found if m.is_given_up}
        ended = {m.candidate.rpartition("/")[2] for m in found if not m.is_given_up}
        across += bool(gave_up - ended)
        assert chosen(world, found, launches) == chosen(world, patient, launches), seed
    assert across > 10
