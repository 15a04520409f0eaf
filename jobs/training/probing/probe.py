"""Timing a few real steps of each candidate, so that a full run can be predicted."""

import functools
import gc
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from jobs.spec.train import Precision
from jobs.training import checkpoint
from jobs.training.checkpoint import Checkpoints, CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus, load_corpus
from jobs.training.evaluate import evaluate, final_precision, padded_tokens
from jobs.training.events import OutOfMemory, Overheads, Probed, WorkersReady
from jobs.training.loop import Report
from jobs.training.memory import is_out_of_memory
from jobs.training.meter import Meter
from jobs.training.probing import environment
from jobs.training.probing.stepper import Stepper
from jobs.training.probing.timing import ProbeTiming
from jobs.training.session import Session, build_session
from jobs.training.step_times import StepTimes, mean_over, mean_width
from jobs.training.world import World, join

FIRST_STEPS = 3
"""Steps whose excess over later ones counts as first use: they allocate and load kernels."""
FIRST_PASS_S = 0.5
"""What a first forward pass may take besides, for kernels that are made."""
BACKWARD_SHARE = 2.0
"""How many times a forward pass a step takes at least; 3 is usual."""
SURELY = 1.5
"""By how many times the least time must be over what is known."""
EVAL_ROWS = 128
"""Evaluation rows judged first, which loads kernels and tells how many more can be afforded."""
EVAL_S = 2.0
"""How long judging is timed at most, about."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One candidate to time."""

    candidate: str
    config: TrainingConfig
    timing: ProbeTiming
    scratch: Path
    """Folder for a checkpoint that is written once and removed."""
    is_brief: bool = False
    """Whether steps alone are timed, because the rest is known from an earlier probe."""
    give_up_s: float | None = None
    """Mean step time from which on something better is known; None when nothing outside of this
    group is, infinite to carry the probe through in any case.
    """


@dataclass(slots=True)
class _Group:
    """What the candidates of a worker group share."""

    corpus: Corpus
    world: World
    corpus_s: float
    report: Report
    save: tuple[float, float] | None = None
    """Seconds that a checkpoint holds up training, and until it is verified."""
    judged: dict[Precision, tuple[float, float]] = field(default_factory=dict)
    """What the first evaluation in a precision took longer than the next, and how long that is."""
    best_high_s: dict[Precision, float] = field(default_factory=dict)
    """Upper bound of the fastest mean step so far; precisions learn differently."""


def probe_all(requests: Sequence[ProbeRequest], report: Report) -> None:
    """Time each candidate in turn in this worker group; all share data and base model.

    Running out of memory is reported and ends the group, because the allocator's state after it
    would falsify what follows; the caller starts a fresh group for the rest.
    """
    with join(requests[0].config.device) as world:
        if world.is_main:
            report(WorkersReady())
        load_corpus(requests[0].config)  # tokenises what no cache holds yet
        begin = time.monotonic()
        corpus = load_corpus(requests[0].config)
        group = _Group(corpus, world, time.monotonic() - begin, report)
        for request in requests:
            try:
                probed = _probe(request, group)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                report(OutOfMemory(request.candidate, str(error).split("\n")[0]))
                return
            if world.is_main:
                report(probed)


def _probe(request: ProbeRequest, group: _Group) -> Probed:
    started, world = time.monotonic(), group.world
    _forget(world)
    session = build_session(request.config, group.corpus, world)
    built_s = group.corpus_s + time.monotonic() - started
    steps_of_width = session.schedule.steps_of_width()
    probed = functools.partial(
        Probed,
        candidate=request.candidate,
        train_rows=len(session.corpus.train),
        eval_rows=len(session.corpus.eval),
        environment=environment.describe(request.config.device),
    )
    least_s = _glimpse(session, mean_width(steps_of_width), _limit(request, group))
    if least_s is not None:
        width = max(steps_of_width)
        return probed(
            times=StepTimes((width,), (least_s,), (1,)),
            steps_of_width={width: session.schedule.total_steps},
            overheads=None,
            is_given_up=True,
            is_steady=True,
            speed=None,
            probe_s=time.monotonic() - started,
        )
    with Meter(session) as meter:
        stepper = Stepper(session, request.timing, group.report)
        warm, steady = stepper.warm_up()
        windows, given_up = stepper.measure(steps_of_width, _limit(request, group))
        meter.results = windows.results
        begin = time.monotonic()
        speed = meter.measured()
        metering_s = time.monotonic() - begin
        mean = mean_over(windows.times, steps_of_width)
        overheads = None
        if not given_up and not request.is_brief:
            setup_s = built_s - session.engine.capture_s
            excess_s = sum(warm[:FIRST_STEPS]) - mean.value * len(warm[:FIRST_STEPS])
            overheads = _overheads(request, group, session, setup_s, max(0.0, excess_s), metering_s)
            speed = meter.with_memory(speed)  # judging and saving take memory too
    # every worker compares with the main one's number, or some would give up and others wait
    high_s = world.broadcast(value=mean.value + mean.half_width)
    best = group.best_high_s.get(request.config.precision, math.inf)
    group.best_high_s[request.config.precision] = min(best, high_s)
    return probed(
        times=windows.times,
        steps_of_width=steps_of_width,
        overheads=overheads,
        is_given_up=given_up,
        is_steady=steady,
        speed=speed,
        probe_s=time.monotonic() - started,
    )


def _glimpse(session: Session, tokens: float, limit_s: float) -> float | None:
    """A step's least time on a CPU from a few rows, when even that is too long; else None.

    `tokens`: mean width of the run's rows. A step of a large batch may take minutes there, and its
    warm-up several. GPUs are no faster with few rows, so that these say nothing about many.
    """
    config, world = session.config, session.world
    if world.device.type != "cpu" or math.isinf(limit_s):
        return None
    begin = time.monotonic()
    evaluate(session, config.precision, limit=1)  # one forward pass, filled up
    spent_s = max(0.0, time.monotonic() - begin - FIRST_PASS_S)
    samples = config.global_batch_size * tokens / padded_tokens(session, 1)
    least_s = world.broadcast(value=BACKWARD_SHARE * spent_s * samples)
    return least_s if least_s > SURELY * limit_s else None


def _forget(world: World) -> None:
    """What the candidate before this one held is not this one's."""
    gc.collect()
    if world.device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream that was captured on
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)


def _limit(request: ProbeRequest, group: _Group) -> float:
    """Mean step time from which on this candidate is not worth timing further."""
    known = group.best_high_s.get(request.config.precision, math.inf)
    outside = request.give_up_s
    return known if outside is None else math.inf if math.isinf(outside) else min(known, outside)


def _overheads(
    request: ProbeRequest,
    group: _Group,
    session: Session,
    setup_s: float,
    excess_s: float,
    metering_s: float,
) -> Overheads:
    own, final = request.config.precision, final_precision(request.config, group.world)
    for precision in (own, final):
        if precision not in group.judged:
            group.judged[precision] = _judging(session, precision)
        elif group.world.device.type == "cuda":
            evaluate(session, precision, limit=EVAL_ROWS)  # for the memory that it takes
    first_s = sum(group.judged[precision][0] for precision in {own, final})
    if group.save is None:
        group.save = _saving(session, request.scratch)
    return Overheads(
        setup_s=setup_s,
        capture_s=session.engine.capture_s,
        first_use_s=excess_s + first_s,
        eval_s=group.judged[own][1],
        final_eval_s=group.judged[final][1],
        save_s=group.save[0],
        final_save_s=group.save[1],
        metering_s=metering_s,
    )


def _judging(session: Session, precision: Precision) -> tuple[float, float]:
    """By how much the first evaluation takes longer than the next, and how long one of all rows is.

    Rows are scaled up by their padded tokens.
    """
    rows = len(session.corpus.eval)

    def timed(limit: int) -> float:
        begin = time.monotonic()
        evaluate(session, precision, limit=limit)
        return session.world.broadcast(value=time.monotonic() - begin)

    few = min(EVAL_ROWS, rows)
    first_s, second_s = timed(few), timed(few)
    many = min(rows, int(few * max(1.0, EVAL_S / second_s)))
    timed_s = timed(many) if many > few else second_s
    tokens = [padded_tokens(session, limit) for limit in (many, rows)]
    return max(0.0, first_s - second_s), timed_s * tokens[1] / tokens[0]


def _saving(session: Session, scratch: Path) -> tuple[float, float]:
    """Seconds that a checkpoint holds up training, and until it is written and verified."""
    shelf = CheckpointStore(scratch)
    saver = Checkpoints(session, shelf)
    begin = time.monotonic()
    saver.save(0, {})
    held_s = time.monotonic() - begin
    saver.finish()
    if session.world.is_main:
        checkpoint.latest(shelf)
    session.world.broadcast(value=0)
    whole_s = time.monotonic() - begin
    if session.world.is_main:
        shutil.rmtree(scratch, ignore_errors=True)
    return held_s, whole_s
