"""The candidates of a placement: micro batches and precisions with their memory."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cluster import catalogue, memory_estimate
from cluster.memory_estimate import MemoryEstimate, Verdict
from cluster.placement import Placement
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
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
    compiled: bool = False
    """Whether its steps are compiled because of `train.compile: auto`."""

    @property
    def id(self) -> str:
        """Readable and unique within a plan, such as `L40S:2/16/bf16` or `L4:1/8/bf16/compiled`."""
        suffix = "/compiled" if self.compiled else ""
        return f"{self.placement.name}/{self.micro_batch_size}/{self.precision}{suffix}"

    @property
    def execution(self) -> Execution:
        """The settings with which training runs it."""
        device = self.placement.device
        peak = catalogue.peak_tflops(self.placement.sku, self.precision)
        return Execution(self.micro_batch_size, self.precision, device, peak, self.compiled)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A combination that is not tried, with the reason."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The job and its sizes, independent of the placement."""

    spec: JobSpec
    shape: ModelShape | None
    longest: int
    """Tokens of the longest row."""
    targets: int = 0
    """Tokens of the longest target; 0 for tasks without targets."""


def on_placement(workload: Workload, placement: Placement) -> Iterator[Candidate | Skipped]:
    """Yields each candidate of a job on a placement, and what is skipped with the reason."""
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
    workload: Workload, placement: Placement, precision: object, batch: object
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


def compiled_candidate(workload: Workload, candidate: Candidate) -> Candidate | None:
    """Returns a candidate with compiled steps; None if it certainly does not fit."""
    needed, verdict = _memory(
        workload,
        candidate.placement,
        candidate.precision,
        candidate.micro_batch_size,
        is_compiled=True,
    )
    if verdict == "too big":
        return None
    return replace(candidate, memory=needed, verdict=verdict, compiled=True)


def _memory(
    workload: Workload,
    placement: Placement,
    precision: Precision,
    batch: int,
    *,
    is_compiled: bool = False,
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
            compile=placement.device == "cuda" and (is_compiled or spec.train.compile is True),
            cpu_offload=spec.train.cpu_offload,
            optimizer=spec.train.optimizer,
        ),
    )
    return needed, needed.verdict(placement.memory_gib)
