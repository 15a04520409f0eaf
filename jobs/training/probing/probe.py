"""Times a few real steps of each candidate, from which the full run is predicted."""

import functools
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.spec.train import Precision
from jobs.training import checkpoint
from jobs.training.checkpoint import CheckpointSaver, CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus, load_corpus
from jobs.training.data import encoding
from jobs.training.evaluate import evaluate, final_precision, padded_tokens, sample_scores
from jobs.training.events import OutOfMemory, Overheads, Probed, Report, Unprobed, WorkersReady
from jobs.training.meter import Meter
from jobs.training.out_of_memory import is_out_of_memory
from jobs.training.probing import environment
from jobs.training.probing.stepper import Stepper
from jobs.training.probing.timing import GiveUp, Limit, ProbeTiming
from jobs.training.probing.unprobed import beyond_slower
from jobs.training.restart import free_memory
from jobs.training.session import Session, build_session
from jobs.training.step_times import StepTimes, mean_over, mean_width
from jobs.training.world import World, join

FIRST_STEPS = 3
"""Number of first steps whose extra time counts as first use: they allocate and load kernels."""
FIRST_PASS_S, FIRST_STEP_S = 0.5, 5.0
"""Longest extra time of a first forward pass, and of a first step, for kernels and memory."""
STEP_OVER_FORWARD = 2.0
"""Least duration of a step as a multiple of its forward pass; 3 is usual."""
STOP_MARGIN = 1.5
"""A probe stops before its first step if the least step time exceeds the limit by this factor."""
EVAL_ROWS = 128
"""Rows of the first evaluation, which loads kernels and shows how many rows EVAL_S allows."""
EVAL_S = 2.0
"""Approximate longest timing of evaluations."""
SCORED_ROWS = 32
"""Rows that show how long scoring those takes that are saved with the last checkpoint."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A candidate to probe."""

    candidate: str
    config: TrainingConfig
    timing: ProbeTiming
    scratch: Path
    """Folder for a checkpoint that is written once and deleted."""
    is_brief: bool = False
    """Whether only steps are timed, because an earlier probe measured the overheads."""
    give_up: GiveUp | None = None
    """When the probe stops early; None for never."""


@dataclass(slots=True)
class _Group:
    """The state that the candidates of a worker group share."""

    corpus: Corpus
    world: World
    corpus_s: float
    report: Report
    save: tuple[float, float] | None = None
    """Seconds that training waits for a checkpoint, and until it is verified."""
    evaluations: dict[Precision, tuple[float, float]] = field(default_factory=dict)
    """Extra seconds of the first evaluation, and seconds of an evaluation of all rows."""
    scoring: dict[Precision, float] = field(default_factory=dict)
    """Seconds of scoring the rows that are saved with the last checkpoint."""
    best: dict[Precision, Limit] = field(default_factory=dict)
    """Upper bound of the fastest mean step so far, by precision, because it changes the metrics."""
    probed: dict[str, tuple[TrainingConfig, Probed]] = field(default_factory=dict)
    """What was found, by candidate."""

    def tell(self, found: Probed | Unprobed) -> None:
        """Report what was found of a candidate."""
        if self.world.is_main:
            self.report(found)


def probe_all(requests: Sequence[ProbeRequest], report: Report) -> None:
    """Probes each candidate in turn in this worker group; all share data and base model.

    Running out of memory is reported and ends the group, because the allocator's state would
    distort later measurements; the caller starts a new group for the remaining candidates.
    """
    with join(requests[0].config.device) as world:
        if world.is_main:
            report(WorkersReady())
        load_corpus(requests[0].config)  # tokenises rows that are not cached yet
        begin = time.monotonic()
        corpus = load_corpus(requests[0].config)
        group = _Group(corpus, world, time.monotonic() - begin, report)
        for request in requests:
            known = group.probed if request.give_up else {}
            found = beyond_slower(request.candidate, request.config, known)
            # other programs may disturb one worker's node alone
            if all(world.gather(found is not None)) and found:
                group.tell(found)
                continue
            try:
                probed = _probe(request, group)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                report(OutOfMemory(request.candidate, str(error).split("\n")[0]))
                return
            group.probed[request.candidate] = request.config, probed
            group.tell(probed)


def _probe(request: ProbeRequest, group: _Group) -> Probed:
    started, world = time.monotonic(), group.world
    free_memory(world.device)
    session = build_session(
        request.config, group.corpus, world, has_references=False, settles=False
    )
    setup_s = group.corpus_s + time.monotonic() - started - session.engine.capture_s
    steps_of_width = session.batch_plan.steps_of_width()
    probed = functools.partial(
        Probed,
        candidate=request.candidate,
        train_rows=len(session.corpus.train),
        eval_rows=len(session.corpus.eval),
        environment=environment.describe(request.config.device),
    )
    limit = _limit(request, group)
    limit_s = limit.step_s if limit else math.inf
    tokens = mean_width(steps_of_width)
    least_s = _least_step_s(session, tokens, limit_s) or _settle(session, tokens, limit_s)
    if least_s is not None:
        width = max(steps_of_width)
        return probed(
            times=StepTimes((width,), (least_s,), (1,)),
            steps_of_width={width: session.batch_plan.total_steps},
            overheads=None,
            is_given_up=True,
            better=limit.candidate if limit else "",
            is_steady=True,
            speed=None,
            probe_s=time.monotonic() - started,
        )
    with Meter(session) as meter:
        stepper = Stepper(session, request.timing, group.report, limit_s)
        warm, steady = stepper.warm_up()
        windows, given_up = stepper.measure()
        meter.results = windows.results
        begin = time.monotonic()
        speed = meter.measured()
        metering_s = time.monotonic() - begin
        mean = mean_over(windows.times, steps_of_width)
        overheads = None
        if not given_up and not request.is_brief:
            excess_s = sum(warm[:FIRST_STEPS]) - mean.value * len(warm[:FIRST_STEPS])
            overheads = _overheads(request, group, session, setup_s, max(0.0, excess_s), metering_s)
            speed = meter.with_memory(speed)  # evaluations and checkpoints need memory too
    # all workers must compare with the same number, or some would stop and others wait
    high_s = world.broadcast(value=mean.value + mean.half_width)
    best = group.best.get(request.config.precision)
    if not given_up and (best is None or high_s < best.step_s):
        group.best[request.config.precision] = Limit(high_s, request.candidate)
    return probed(
        times=windows.times,
        steps_of_width=steps_of_width,
        overheads=overheads,
        is_given_up=given_up,
        better=limit.candidate if limit and given_up else "",
        is_steady=steady,
        speed=speed,
        probe_s=time.monotonic() - started,
    )


def _least_step_s(session: Session, tokens: float, limit_s: float) -> float | None:
    """Returns a lower bound of the step time on a CPU if it exceeds the limit; else None.

    It is estimated from the forward pass of a few rows, because a step of a large batch may take
    minutes on a CPU. `tokens` is the mean width of the run's rows. On GPUs the estimate would be
    wrong: a few rows take as long as many.
    """
    config, world = session.config, session.world
    if world.device.type != "cpu" or math.isinf(limit_s):
        return None
    begin = time.monotonic()
    # one forward pass of a row and filler rows
    evaluate(session, config.precision, limit=1, generates=False)
    spent_s = max(0.0, time.monotonic() - begin - FIRST_PASS_S)
    samples = config.global_batch_size * tokens / padded_tokens(session, 1)
    least_s = world.broadcast(value=STEP_OVER_FORWARD * spent_s * samples)
    return least_s if least_s > STOP_MARGIN * limit_s else None


def _settle(session: Session, tokens: float, limit_s: float) -> float | None:
    """Runs DDP's first steps; returns a lower bound of the step time on a CPU as `_least_step_s`.

    It is that of the first of these steps, after which the others are left out.
    """
    engine, world = session.engine, session.world
    first_s = engine.settle(1)
    if world.device.type == "cpu" and not session.config.compile and not math.isinf(limit_s):
        share = tokens / session.batch_plan.widths[-1]
        least_s = world.broadcast(value=max(0.0, first_s - FIRST_STEP_S) * share)
        if least_s > STOP_MARGIN * limit_s:
            return least_s
    engine.settle()
    return None


def _limit(request: ProbeRequest, group: _Group) -> Limit | None:
    """Returns the mean step time above which the probe stops early; None without one."""
    return request.give_up.limit(request.config.precision, group.best) if request.give_up else None


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
        if precision not in group.evaluations:
            group.evaluations[precision] = _time_evaluation(session, precision)
        elif group.world.device.type == "cuda":
            # because the peak of memory includes it
            evaluate(session, precision, limit=EVAL_ROWS, generates=False)
    first_s = sum(group.evaluations[precision][0] for precision in {own, final})
    if group.save is None:
        group.save = _time_saving(session, request.scratch)
    if final not in group.scoring:
        group.scoring[final] = _time_scoring(session, final)
    return Overheads(
        setup_s=setup_s + _unscored_share(session) * group.evaluations[own][1],
        capture_s=session.engine.capture_s,
        first_use_s=excess_s + first_s,
        eval_s=group.evaluations[own][1],
        final_eval_s=group.evaluations[final][1],
        save_s=group.save[0],
        final_save_s=group.save[1],
        metering_s=metering_s,
        scoring_s=group.scoring[final],
    )


def _time_evaluation(session: Session, precision: Precision) -> tuple[float, float]:
    """Returns the extra seconds of the first evaluation, and the seconds of one of all rows.

    The latter is extrapolated from a sample by padded tokens.
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


def _time_scoring(session: Session, precision: Precision) -> float:
    """Returns the seconds of scoring all sampled rows, extrapolated from a few of them."""
    begin = time.monotonic()
    scored = len(sample_scores(session, precision, SCORED_ROWS))
    seconds = session.world.broadcast(value=time.monotonic() - begin)
    return seconds * len(encoding.sample(len(session.corpus.eval))) / scored


def _unscored_share(session: Session) -> float:
    """Returns the tokens of rows that the base has to score first, over those of an evaluation."""
    train, rest = session.corpus.train.lengths.sum(), session.corpus.eval.lengths.sum()
    return 1.0 + float(train / rest) if session.lacks_references else 0.0


def _time_saving(session: Session, scratch: Path) -> tuple[float, float]:
    """Returns the seconds that training waits for a checkpoint, and until it is verified."""
    store = CheckpointStore(scratch)
    saver = CheckpointSaver(session, store)
    begin = time.monotonic()
    saver.save(0, {})
    wait_s = time.monotonic() - begin
    saver.finish()
    if session.world.is_main:
        checkpoint.latest(store)
    session.world.broadcast(value=0)
    whole_s = time.monotonic() - begin
    if session.world.is_main:
        shutil.rmtree(scratch, ignore_errors=True)
    return wait_s, whole_s
