"""Timing a few real steps of each candidate, so that a full run can be predicted."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jobs.spec.train import Precision
from jobs.training.config import TrainingConfig
from jobs.training.data.corpus import Corpus, load_corpus
from jobs.training.evaluate import evaluate, final_precision
from jobs.training.events import OutOfMemory, Probed
from jobs.training.loop import Report, is_out_of_memory
from jobs.training.meter import peak_memory_gib
from jobs.training.session import Session, build_session
from jobs.training.world import World, join

WARMUP_STEPS = 2
"""Steps that are never counted: the first ones allocate memory and choose kernels."""
MINIMUM_STEPS = 3
"""Steps that are counted in any case."""
EVAL_ROWS = 128
"""Evaluation rows timed to predict how long judging takes."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One candidate to time."""

    candidate: str
    config: TrainingConfig
    warmup_s: float
    duration_s: float


def probe_all(requests: Sequence[ProbeRequest], report: Report) -> None:
    """Time each candidate in turn in this worker group; all share data and base model.

    Running out of memory is reported and ends the group, because the allocator's state after it
    would falsify what follows; the caller starts a fresh group for the rest.
    """
    started = time.monotonic()
    with join(requests[0].config.device) as world:
        corpus = load_corpus(requests[0].config)
        for request in requests:
            try:
                probed = _probe(request, corpus, world, started)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                report(OutOfMemory(request.candidate, str(error).split("\n")[0]))
                return
            if world.is_main:
                report(probed)
            started = time.monotonic()


def _probe(request: ProbeRequest, corpus: Corpus, world: World, started: float) -> Probed:
    if world.device.type == "cuda":
        torch.cuda.empty_cache()  # what the candidate before this one held is not this one's
        torch.cuda.reset_peak_memory_stats(world.device)
    session = build_session(request.config, corpus, world)
    setup_s = time.monotonic() - started
    warmup = _run_for(session, 0, request.warmup_s, WARMUP_STEPS)
    times = _run_for(session, len(warmup), request.duration_s, MINIMUM_STEPS)
    rates = [
        _eval_rate(session, name)
        for name in (request.config.precision, final_precision(request.config, world))
    ]
    return Probed(
        candidate=request.candidate,
        step_seconds=tuple(times),
        eval_samples_per_s=rates[0],
        final_eval_samples_per_s=rates[1],
        peak_memory_gib=world.largest(peak_memory_gib(world.device)),
        train_rows=len(corpus.train),
        eval_rows=len(corpus.eval),
        setup_s=setup_s,
        probe_s=time.monotonic() - started - setup_s,
    )


def _run_for(session: Session, first: int, seconds: float, minimum: int) -> list[float]:
    """Step until `seconds` have passed, at least `minimum` times; returns each step's seconds."""
    times: list[float] = []
    begin = time.monotonic()
    engine, per_epoch = session.engine, session.schedule.steps_per_epoch
    while True:
        step = (first + len(times)) % per_epoch  # a probe may outlast a small epoch
        engine.seek(step)
        engine.launch(step, min(step + engine.block, per_epoch))
        times += [result.seconds for result in engine.collect()]
        is_over = time.monotonic() - begin >= seconds and len(times) >= minimum
        if session.world.agree(value=is_over):
            return times


def _eval_rate(session: Session, precision: Precision) -> float:
    rows = min(EVAL_ROWS, len(session.corpus.eval))
    start = time.monotonic()
    evaluate(session, precision, limit=rows)
    return rows / (time.monotonic() - start)
