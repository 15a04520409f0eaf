"""Plans a job: the candidates to try, and the skipped combinations with the reason."""

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from cluster import catalogue, memory_estimate
from cluster.inventory import Inventory
from cluster.memory_estimate import MemoryEstimate, Verdict
from cluster.placement import Placement, place
from cluster.prices import NO_QUOTES, PriceBook
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.train import Precision
from jobs.training.model.shape import ModelShape
from orchestrator.decisions import batch_size
from orchestrator.decisions.resolve import Execution


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the job: a placement, a micro batch and a precision."""

    placement: Placement
    micro_batch_size: int
    precision: Precision
    accumulation: int
    """Forward passes per worker and optimizer step."""
    memory: MemoryEstimate | None
    """None if the model's size is unknown."""
    verdict: Verdict
    reason: str = ""
    """Reasons for the values of `auto` fields."""

    @property
    def id(self) -> str:
        """Readable and unique within a plan, such as `L40S:2/16/bf16`."""
        return f"{self.placement.name}/{self.micro_batch_size}/{self.precision}"

    @property
    def execution(self) -> Execution:
        """The settings with which training runs it."""
        peak = catalogue.peak_tflops(self.placement.sku, self.precision)
        return Execution(self.micro_batch_size, self.precision, self.placement.device, peak)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A combination that is not tried, with the reason."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The candidates that a run will try, and the skipped combinations."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...] = ()
    """Sentences on the plan's assumptions: ambiguous names, unused nodes, truncated rows, moved
    routes."""

    def candidate(self, identity: str) -> Candidate:
        """Returns the candidate with an id.

        Raises:
            InfeasibleError: if the plan has no such candidate.
        """
        for candidate in self.candidates:
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

    def only(self, placement: Placement, reason: str) -> "Plan":
        """Returns the plan on one placement, with all others skipped for a reason."""
        return self._where(lambda candidate: candidate.placement == placement, reason)

    def among(self, wanted: "Plan") -> "Plan":
        """Returns what another plan tries of this one; InfeasibleError if nothing is left."""
        ids = {candidate.id for candidate in wanted.candidates}
        found = self._where(lambda c: c.id in ids, "the given plan leaves it out")
        if not found.candidates:
            names = ", ".join(sorted(ids)) or "nothing"
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
        return replace(self, candidates=kept, skipped=(*self.skipped, *skipped))


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
    workload = _Workload(spec, shape, min(longest or length, length), min(targets or most, most))
    candidates: list[Candidate] = []
    skipped = [Skipped(name, reason) for name, reason in inventory.left_out().items()]
    for request, spot in _requests(spec, inventory):
        try:
            found = place(request, inventory, spec.hourly_prices, spot=spot, book=book)
            placement = _affordable(found, spec)
        except InfeasibleError as error:
            skipped.append(Skipped(str(request), str(error)))
            continue
        for one in _on_placement(workload, placement):
            (candidates if isinstance(one, Candidate) else skipped).append(one)  # type: ignore[arg-type]
    if not candidates:
        reasons = "; ".join(dict.fromkeys(skip.reason for skip in skipped))
        raise InfeasibleError(f"nothing in this job can run here: {reasons}")
    cut = _cut_rows(longest, length)
    remarks = dict.fromkeys((*catalogue.choices(spec), *inventory.remarks, *cut))
    return Plan(tuple(candidates), tuple(skipped), tuple(remarks))


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


@dataclass(frozen=True, slots=True)
class _Workload:
    """The job and its sizes, independent of the placement."""

    spec: JobSpec
    shape: ModelShape | None
    longest: int
    """Tokens of the longest row."""
    targets: int = 0
    """Tokens of the longest target; 0 for tasks without targets."""


def _on_placement(workload: _Workload, placement: Placement) -> Iterator[Candidate | Skipped]:
    spec = workload.spec
    space = spec.sweep.search_space if spec.sweep else {}
    precisions = space.get("train.precision", (spec.train.precision,))
    batches = space.get("train.micro_batch_size", (spec.train.micro_batch_size,))
    if not isinstance(precisions, tuple) or not isinstance(batches, tuple):
        raise InfeasibleError(
            "sweep.search_space has a range for micro batch or precision; write a list of values"
        )
    seen: set[str] = set()
    for precision, batch in itertools.product(precisions, batches):
        found = _combine(workload, placement, precision, batch)
        if found.id not in seen:
            seen.add(found.id)
            yield found


def _combine(
    workload: _Workload, placement: Placement, precision: object, batch: object
) -> Candidate | Skipped:
    spec = workload.spec
    sku, reasons = catalogue.find(placement.sku), []
    identity = f"{placement.name}/{batch}/{precision}"
    if precision == "auto":
        precision, reason = catalogue.auto_precision(sku)
        reasons.append(f"precision {reason}")
    if precision not in sku.precisions:
        return Skipped(
            identity, f"{sku.name} has no {precision}; it has {', '.join(sku.precisions)}"
        )
    if batch == "auto":
        batch, reason = batch_size.choose(
            spec, placement, lambda size: _memory(workload, placement, precision, size)[1]
        )
        reasons.append(f"micro batch {reason}")
    if refusal := batch_size.refusal(spec, placement.workers, batch):
        return Skipped(identity, refusal)
    assert isinstance(batch, int)
    needed, verdict = _memory(workload, placement, precision, batch)
    if needed and verdict == "too big":
        least, has = needed.low_gib, placement.memory_gib
        return Skipped(identity, f"needs at least {least:.1f} GiB; {sku.name} has {has:.1f}")
    return Candidate(
        placement,
        batch,
        precision,
        spec.train.global_batch_size // placement.workers // batch,
        needed,
        verdict,
        "; ".join(reasons),
    )


def _memory(
    workload: _Workload, placement: Placement, precision: Precision, batch: int
) -> tuple[MemoryEstimate | None, Verdict]:
    spec, shape = workload.spec, workload.shape
    if shape is None:
        return None, "unknown"
    sequences = spec.data.sequence_count
    needed = memory_estimate.estimate(
        shape,
        micro_batch_size=batch * sequences,
        tokens=workload.longest,
        target_tokens=workload.targets,
        precision=precision,
        device=placement.device,
        eval_batch=spec.task.eval_batch * sequences,
        sharding=memory_estimate.StateSharding(
            workers=placement.workers,
            strategy=spec.train.strategy,
            adapter=spec.model.adapter is not None,
            quantization=spec.model.adapter.quantization if spec.model.adapter else None,
            gradient_checkpointing=spec.train.gradient_checkpointing,
            compile=spec.train.compile and placement.device == "cuda",
            cpu_offload=spec.train.cpu_offload,
            optimizer=spec.train.optimizer,
        ),
    )
    return needed, needed.verdict(placement.memory_gib)
