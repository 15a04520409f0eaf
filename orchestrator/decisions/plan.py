"""Plans a job: the candidates to try, and the skipped combinations with the reason."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from cluster import catalogue
from cluster.inventory import Inventory
from cluster.placement import Placement, place
from cluster.prices import NO_QUOTES, PriceBook
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.training.model.shape import ModelShape
from orchestrator.decisions import compiling
from orchestrator.decisions.candidate import (
    Candidate,
    Skipped,
    Workload,
    compiled_candidate,
    on_placement,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The candidates that a run will try, and the skipped combinations."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...] = ()
    """Sentences on the plan's assumptions: ambiguous names, unused nodes, truncated rows, moved
    routes."""
    compiled: tuple[Candidate, ...] = ()
    """Candidates with compiled steps, which are tried only where that may pay; empty in a plan of
    an older release."""

    def candidate(self, identity: str) -> Candidate:
        """Returns the candidate with an id.

        Raises:
            InfeasibleError: if the plan has no such candidate.
        """
        for candidate in (*self.candidates, *self.compiled):
            if candidate.id == identity:
                return candidate
        known = ", ".join(candidate.id for candidate in self.candidates)
        raise InfeasibleError(f"{identity} can no longer be placed; this cluster can run {known}")

    @property
    def probing_order(self) -> tuple[Candidate, ...]:
        """Candidates in order of expected value, so that later probes can stop early.

        Placements are ordered by price per peak FLOP; on each placement, certain fits precede
        tight ones, the precision of `auto` precedes others, 16 bits precede 32, and large micro
        batches precede small ones.
        """
        return tuple(sorted(self.candidates, key=_expected_rank))

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The distinct placements, in the job's order."""
        return tuple(dict.fromkeys(candidate.placement for candidate in self.candidates))

    def trying(self, ids: Collection[str]) -> "Plan":
        """Returns the plan that tries the compiled candidates with these ids too."""
        tried = tuple(c for c in self.compiled if c.id in ids)
        left = tuple(c for c in self.compiled if c.id not in ids)
        return replace(self, candidates=(*self.candidates, *tried), compiled=left)

    def only(self, placement: Placement, reason: str) -> "Plan":
        """Returns the plan on one placement, with all others skipped for a reason."""
        return self._where(lambda candidate: candidate.placement == placement, reason)

    def among(self, wanted: "Plan") -> "Plan":
        """Returns what another plan tries of this one; InfeasibleError if nothing is left."""
        ids = {candidate.id for candidate in (*wanted.candidates, *wanted.compiled)}
        found = self._where(lambda c: c.id in ids, "the given plan leaves it out")
        if not found.candidates:
            names = ", ".join(sorted(c.id for c in wanted.candidates)) or "nothing"
            raise InfeasibleError(
                f"the plan tries {names}, of which this cluster can run nothing; plan anew on it"
            )
        return found

    def without(self, placements: Collection[str], reason: str) -> "Plan":
        """Returns the plan without placements of these names; InfeasibleError if none is left."""
        found = self._where(lambda c: c.placement.name not in placements, reason)
        if not found.candidates:
            raise InfeasibleError(f"{', '.join(sorted(placements))} {reason}; no placement is left")
        return found

    def _where(self, is_kept: Callable[[Candidate], bool], reason: str) -> "Plan":
        """Returns the plan with some candidates, and the others skipped for a reason."""
        kept = tuple(filter(is_kept, self.candidates))
        skipped = (Skipped(c.id, reason) for c in self.candidates if c not in kept)
        compiled = tuple(filter(is_kept, self.compiled))
        return replace(self, candidates=kept, skipped=(*self.skipped, *skipped), compiled=compiled)


def _expected_rank(candidate: Candidate) -> tuple[float, str, bool, bool, bool, int]:
    placement = candidate.placement
    peak = catalogue.peak_tflops(placement.sku, candidate.precision)
    price = placement.price_usd_per_hour
    is_known = peak is not None and price is not None
    per_flop = price / (peak * placement.workers) if is_known else math.inf  # type: ignore[operator]
    own, _ = catalogue.auto_precision(catalogue.find(placement.sku))
    is_wide = candidate.precision in ("fp32", "tf32")
    return (
        per_flop,
        placement.name,
        candidate.verdict != "fits",
        candidate.precision != own,
        is_wide,
        -candidate.micro_batch_size,
    )


def make_plan(
    spec: JobSpec,
    inventory: Inventory,
    shape: ModelShape | None,
    longest: int | None = None,
    book: PriceBook = NO_QUOTES,
    targets: int | None = None,
) -> Plan:
    """Combine placements, micro batches and precisions into a plan.

    `longest`: tokens of the longest row; None counts as data.max_length. `targets`: tokens of the
    longest target; None counts as the longest that the job allows.

    Raises:
        InfeasibleError: if no combination can run.
    """
    length = spec.data.max_length
    most = spec.data.target_tokens
    workload = Workload(spec, shape, min(longest or length, length), min(targets or most, most))
    candidates: list[Candidate] = []
    skipped = [Skipped(name, reason) for name, reason in inventory.left_out().items()]
    for request, spot in _requests(spec, inventory):
        try:
            found = place(request, inventory, spec.hourly_prices, spot=spot, book=book)
            placement = _affordable(found, spec)
        except InfeasibleError as error:
            skipped.append(Skipped(str(request), str(error)))
            continue
        for one in on_placement(workload, placement):
            (candidates if isinstance(one, Candidate) else skipped).append(one)  # type: ignore[arg-type]
    if not candidates:
        reasons = "; ".join(dict.fromkeys(skip.reason for skip in skipped))
        raise InfeasibleError(f"nothing in this job can run here: {reasons}")
    placements = dict.fromkeys(candidate.placement for candidate in candidates)
    notes = (*_cut_rows(longest, length), *compiling.remarks(spec, placements))
    remarks = dict.fromkeys((*catalogue.choices(spec), *inventory.remarks, *notes))
    undecided = (c for c in candidates if compiling.is_open(spec, c.placement))
    maybe = filter(None, (compiled_candidate(workload, c) for c in undecided))
    return Plan(tuple(candidates), tuple(skipped), tuple(remarks), tuple(maybe))


def _requests(
    spec: JobSpec, inventory: Inventory
) -> Iterator[tuple[AcceleratorRequest, bool | None]]:
    """Yields the requested accelerators, and whether on spot nodes (None for either)."""
    if spec.resources is None:
        yield from ((AcceleratorRequest(sku), None) for sku in inventory.counts())
    else:
        yield from ((listed.accelerators, listed.spot) for _, listed in spec.resources.placements)


def _affordable(placement: Placement, spec: JobSpec) -> Placement:
    limit = spec.resources.max_hourly_cost if spec.resources else None
    price = placement.price_usd_per_hour
    if limit is not None and price is None:
        raise InfeasibleError(f"{placement.sku} has no known price; add it under prices")
    if limit is not None and price is not None and price > limit:
        raise InfeasibleError(f"costs {price:.2f} USD per hour, over max_hourly_cost {limit:g}")
    return placement


def _cut_rows(longest: int | None, most: int) -> tuple[str, ...]:
    if longest is None or longest <= most:
        return ()
    return (
        f"the longest training row has about {longest:,} tokens; rows are truncated to {most:,}"
        " tokens (data.max_length)",
    )
