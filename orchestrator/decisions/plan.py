"""Every way to run the job that would be tried, and every one that is not, with the reason."""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from cluster import catalogue, memory
from cluster.inventory import Inventory
from cluster.memory import MemoryEstimate, Verdict
from cluster.placement import Placement, place
from cluster.prices import NO_QUOTES, PriceBook
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.train import Precision
from jobs.training.model.shape import ModelShape
from orchestrator.decisions.resolve import Execution

LARGEST_UNKNOWN_MICRO_BATCH = 32
"""What `auto` takes at most when the model's size, and so its memory, is not known."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run: a placement, a micro batch and a precision."""

    placement: Placement
    micro_batch_size: int
    precision: Precision
    accumulation: int
    """Forward passes per worker and optimizer step."""
    memory: MemoryEstimate | None
    """None when the model's size is not known."""
    verdict: Verdict
    reason: str = ""
    """Why fields left to `auto` have their values."""

    @property
    def id(self) -> str:
        """Readable and unique within a plan, such as `L40S:2/16/bf16`."""
        return f"{self.placement.name}/{self.micro_batch_size}/{self.precision}"

    @property
    def execution(self) -> Execution:
        """How training runs it."""
        peak = catalogue.peak_tflops(self.placement.sku, self.precision)
        return Execution(self.micro_batch_size, self.precision, self.placement.device, peak)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A combination that is not tried."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will try."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...] = ()
    """Sentences on what the plan took for granted: names that fit several SKUs, nodes left out,
    rows that are cut, routes that move."""

    def candidate(self, identity: str) -> Candidate:
        """The candidate with an id; InfeasibleError when the cluster has no place for it."""
        for candidate in self.candidates:
            if candidate.id == identity:
                return candidate
        known = ", ".join(candidate.id for candidate in self.candidates)
        raise InfeasibleError(f"{identity} can no longer be placed; this cluster can run {known}")

    @property
    def probing_order(self) -> tuple[Candidate, ...]:
        """Candidates with the likely best first, so that the rest can be given up early.

        Placements by catalogue price for their peak; on each, those that surely fit before those
        that may not, 16 bits before 32, large micro batches before small ones.
        """
        return tuple(sorted(self.candidates, key=_promise))

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The distinct placements, in the job's order."""
        return tuple(dict.fromkeys(candidate.placement for candidate in self.candidates))

    def only(self, placement: Placement, reason: str) -> "Plan":
        """The plan on one placement; all others are skipped for a reason."""
        kept = tuple(c for c in self.candidates if c.placement == placement)
        left = (c for c in self.candidates if c.placement != placement)
        skipped = (*self.skipped, *(Skipped(c.id, reason) for c in left))
        return replace(self, candidates=kept, skipped=skipped)

    def among(self, wanted: "Plan") -> "Plan":
        """What another plan tries of this one; all else is skipped.

        Raises InfeasibleError when nothing is left.
        """
        ids = {candidate.id for candidate in wanted.candidates}
        kept = tuple(c for c in self.candidates if c.id in ids)
        left = (c for c in self.candidates if c.id not in ids)
        if not kept:
            names = ", ".join(sorted(ids)) or "nothing"
            raise InfeasibleError(
                f"the plan tries {names}, of which this cluster can run nothing; plan anew on it"
            )
        skipped = (*self.skipped, *(Skipped(c.id, "the given plan leaves it out") for c in left))
        return replace(self, candidates=kept, skipped=skipped)

    def without(self, placements: Collection[str], reason: str) -> "Plan":
        """The plan but for some placements, by name; InfeasibleError when nothing is left."""
        kept = tuple(c for c in self.candidates if c.placement.name not in placements)
        left = (c for c in self.candidates if c.placement.name in placements)
        if not kept:
            raise InfeasibleError(f"{', '.join(sorted(placements))} {reason}; nothing is left")
        skipped = (*self.skipped, *(Skipped(c.id, reason) for c in left))
        return replace(self, candidates=kept, skipped=skipped)


def _promise(candidate: Candidate) -> tuple[float, str, bool, bool, int]:
    placement = candidate.placement
    peak = catalogue.peak_tflops(placement.sku, candidate.precision)
    price = placement.price_usd_per_hour
    is_known = peak is not None and price is not None
    per_flop = price / (peak * placement.workers) if is_known else math.inf  # type: ignore[operator]
    is_wide = candidate.precision in ("fp32", "tf32")
    return (
        per_flop,
        placement.name,
        candidate.verdict != "fits",
        is_wide,
        -candidate.micro_batch_size,
    )


def make_plan(
    spec: JobSpec,
    inventory: Inventory,
    shape: ModelShape | None,
    longest: int | None = None,
    book: PriceBook = NO_QUOTES,
) -> Plan:
    """Cross placements, micro batches and precisions; InfeasibleError when nothing is left.

    `longest`: tokens of the longest row; where it is not known, rows may be of data.max_length.
    """
    length = spec.data.max_length
    workload = _Workload(spec, shape, min(longest or length, length))
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
    """What is asked for, and whether of spot nodes."""
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
        f"the longest training row has about {longest:,} tokens; what is beyond {most:,} of a row"
        " is cut (data.max_length)",
    )


@dataclass(frozen=True, slots=True)
class _Workload:
    """What is trained, wherever it runs."""

    spec: JobSpec
    shape: ModelShape | None
    longest: int
    """Tokens of the longest row."""


def _on_placement(workload: _Workload, placement: Placement) -> Iterator[Candidate | Skipped]:
    spec = workload.spec
    space = spec.sweep.search_space if spec.sweep else {}
    precisions = space.get("train.precision", (spec.train.precision,))
    batches = space.get("train.micro_batch_size", (spec.train.micro_batch_size,))
    if not isinstance(precisions, tuple) or not isinstance(batches, tuple):
        raise InfeasibleError("micro batch and precision are searched as lists, not ranges")
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
        batch, reason = _auto_batch(workload, placement, precision)
        reasons.append(f"micro batch {reason}")
    share, remainder = divmod(spec.train.global_batch_size, placement.workers)
    if remainder or not isinstance(batch, int) or share % batch:
        return Skipped(
            identity,
            f"micro batch {batch} x {placement.workers} workers does not divide the global batch"
            f" of {spec.train.global_batch_size}",
        )
    needed, verdict = _memory(workload, placement, precision, batch)
    if needed and verdict == "too big":
        least, has = needed.low_gib, placement.memory_gib
        return Skipped(identity, f"needs at least {least:.1f} GiB; {sku.name} has {has:.1f}")
    return Candidate(
        placement, batch, precision, share // batch, needed, verdict, "; ".join(reasons)
    )


def _auto_batch(workload: _Workload, placement: Placement, precision: Precision) -> tuple[int, str]:
    """The largest power of two that divides the share and fits, so that accumulation is whole."""
    share = max(1, workload.spec.train.global_batch_size // placement.workers)
    powers = [2**n for n in range(share.bit_length()) if share % 2**n == 0]
    if workload.shape is None:
        known = [size for size in powers if size <= LARGEST_UNKNOWN_MICRO_BATCH]
        return known[-1], f"{known[-1]}: the model's memory is not known"
    fitting = [p for p in powers if _memory(workload, placement, precision, p)[1] == "fits"]
    chosen = fitting[-1] if fitting else powers[0]
    return chosen, f"{chosen}: the largest that fits {placement.memory_gib:.0f} GiB"


def _memory(
    workload: _Workload, placement: Placement, precision: Precision, batch: int
) -> tuple[MemoryEstimate | None, Verdict]:
    spec, shape = workload.spec, workload.shape
    if shape is None:
        return None, "unknown"
    needed = memory.estimate(
        shape,
        micro_batch_size=batch,
        tokens=workload.longest,
        precision=precision,
        device=placement.device,
        eval_batch=spec.task.eval_batch,
        spread=memory.Spread(
            workers=placement.workers,
            strategy=spec.train.strategy,
            adapter=spec.model.adapter is not None,
            gradient_checkpointing=spec.train.gradient_checkpointing,
            cpu_offload=spec.train.cpu_offload,
        ),
    )
    return needed, needed.verdict(placement.memory_gib)
