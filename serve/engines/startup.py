"""Starts a replica's batcher: selects the engine, reads the model, and warms up every shape."""

import itertools
import logging
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from jobs.spec.serve import EngineName
from jobs.spec.task import PER_TOKEN, Activation
from serve.batching.batcher import Batcher, OnBatch
from serve.batching.policy import Limits, form_batches
from serve.batching.rows import PendingScores, Row
from serve.batching.waiting import NOTHING, Saving
from serve.config import ReplicaConfig
from serve.engines import acceptance, optional_packages, selection
from serve.engines.engine import ACTIVATIONS, Choice, Engine, OneByOne, run_s
from serve.engines.engine_factory import BLANK, EngineFactory, EvalSample, eval_sample_of
from serve.engines.packing import USUAL_LENGTHS

_logger = logging.getLogger(__name__)

FEW_ROWS, MANY_ROWS, FIXED_WIDTH, FIXED_TRIALS = 4, 16, 16, 5
"""For timing the fixed cost of a batch: rows of a small and of a large batch, their width in
tokens, and runs of each."""
FULL_TRIALS = 5
"""Runs of a full batch and of its halves."""


def start(config: ReplicaConfig, on_batch: OnBatch) -> tuple[Choice, Batcher]:
    """Starts a batcher with a warm engine.

    Args:
        config: Configuration of the replica; the version's files must be on this machine.
        on_batch: Called with the rows, tokens and seconds of each batch.

    Raises:
        DeployError: if no engine passes the acceptance check.
    """
    version = config.version
    factory = EngineFactory.of(version, config.device, config.threads)
    sample = eval_sample_of(version)
    choice, engine = warm(config, factory, sample)
    limits = config.limits(choice.batch_tokens, is_packed=engine.is_packed)
    lengths = [len(row) for row in sample.rows]
    saved = NOTHING
    if not engine.ahead and not choice.is_one_by_one:
        saved = saving(engine, limits, lengths, version.max_length, sample.pattern)
    return choice, Batcher(
        scored(engine, sample.activation),
        factory.tokenizer,
        limits,
        on_batch,
        ahead=engine.ahead,
        saving=saved,
    )


def warm(
    config: ReplicaConfig, factory: EngineFactory, sample: EvalSample
) -> tuple[Choice, Engine]:
    """Selects and creates the engine of a replica, and warms it up; raises DeployError."""
    choice, engine = prepare(config, factory, sample)
    limits = config.limits(choice.batch_tokens, is_packed=engine.is_packed)
    warm_up(engine, limits, sample, config.version.max_length)
    return choice, engine


def warm_up(engine: Engine, limits: Limits, sample: EvalSample, longest: int) -> None:
    """Compiles or captures the engine's graphs for the usual shapes, and runs each shape once.

    Args:
        engine: The engine to warm up.
        limits: Limits of a batch.
        sample: The evaluation sample, whose lengths are taken as typical.
        longest: Longest row in tokens.
    """
    lengths = [len(row) for row in sample.rows]
    for rows, width in engine.prepare(lengths, limits, longest):
        engine.run([_row(sample.pattern, width)] * rows)


def saving(
    engine: Engine,
    limits: Limits,
    lengths: Sequence[int],
    longest: int,
    pattern: Row = BLANK,
) -> Saving:
    """Measures the seconds that one batch saves over two of half its size.

    Two points are measured. For a few inputs the saving is the fixed cost of a batch, from the
    times of a small and a large batch. A full batch may save more, because it has a static-shape
    graph; this is the median over FULL_TRIALS runs.

    Args:
        engine: A warm engine.
        limits: Limits of a batch.
        lengths: Tokens of typical inputs; USUAL_LENGTHS if empty.
        longest: Longest row in tokens.
        pattern: Row from whose tokens the measured rows are built.
    """
    width, least = min(FIXED_WIDTH, longest), dict[int, float]()
    for count in (FEW_ROWS, MANY_ROWS) * FIXED_TRIALS:
        least[count] = min(least.get(count, math.inf), _seconds(engine, pattern, [width] * count))
    row_s = (least[MANY_ROWS] - least[FEW_ROWS]) / (MANY_ROWS - FEW_ROWS)
    few_s = max(0.0, least[FEW_ROWS] - FEW_ROWS * row_s)
    stream = itertools.cycle(min(length, longest) for length in lengths or USUAL_LENGTHS)
    full_s = list[float]()  # small differences of long times, which other load distorts
    for _ in range(FULL_TRIALS):
        waiting = list(itertools.islice(stream, limits.batch_rows))
        whole = [waiting[index] for index in max(form_batches(waiting, limits), key=len)]
        halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        parts_s = sum(_seconds(engine, pattern, half) for half in halves if half)
        full_s.append(parts_s - _seconds(engine, pattern, whole))
    seconds = few_s, max(few_s, statistics.median(full_s))
    return Saving((MANY_ROWS * width, limits.batch_tokens), seconds)


def _seconds(engine: Engine, pattern: Row, lengths: Sequence[int]) -> float:
    return run_s(engine, [_row(pattern, length) for length in lengths])


def _row(pattern: Row, length: int) -> Row:
    """Returns a row of a given length with the first and last token of a real row.

    Some models require these special tokens. Its first token is hidden, for a model that predicts
    hidden tokens.
    """
    inside = pattern.ids[1:-1] or pattern.ids
    inner = itertools.islice(itertools.cycle(inside), max(0, length - 2))
    ids = (pattern.ids[0], *inner, pattern.ids[-1])
    return Row(ids[-length:], (0,) * length, hidden=(0,))


def scored(engine: Engine, activation: Activation) -> Callable[[Sequence[Row]], PendingScores]:
    """Returns the `launch` of an engine with the activation applied to its logits.

    Scores of tokens are divided into an array for each row, [tokens, labels].
    """
    activate = ACTIVATIONS[activation]

    def launch(rows: Sequence[Row]) -> PendingScores:
        pending = engine.launch(rows)
        return lambda: activate(pending())

    def launch_tokens(rows: Sequence[Row]) -> PendingScores:
        pending = engine.launch(rows)
        ends = list(itertools.accumulate(map(len, rows)))[:-1]
        return lambda: np.split(activate(pending()), ends)

    return launch_tokens if activation in PER_TOKEN else launch


def prepare(
    config: ReplicaConfig, factory: EngineFactory, sample: EvalSample
) -> tuple[Choice, Engine]:
    """Selects and creates the engine of a replica.

    A version without an evaluation sample gets the configured engine, or torch in fp32.

    Raises:
        DeployError: if no engine passes the acceptance check.
    """
    names = engines_for(config)
    if not sample.rows:  # the acceptance check is impossible
        engine = factory.make(names[0] if len(names) == 1 else acceptance.REFERENCE, sample)
        tokens = selection.default_tokens(engine, config.device)
        return Choice(engine.name, tokens, 0.0), engine
    choice = selection.choose(factory, names, sample, is_timed=len(names) > 1)
    engine = factory.make(choice.engine, sample)
    return choice, OneByOne(engine) if choice.is_one_by_one else engine


def engines_for(config: ReplicaConfig) -> tuple[EngineName, ...]:
    """Returns the candidates: the configured engine, or all engines of the configured precision.

    Leaves out engines whose packages are not installed, and logs their names.
    """
    if config.engine:
        return (config.engine,)
    names = selection.CPU_ENGINES if config.device == "cpu" else selection.GPU_ENGINES
    if config.precision is not None:
        wanted = "fp32" if config.precision == "tf32" else config.precision
        names = tuple(name for name in names if name.endswith(f"-{wanted}"))
    if text := optional_packages.left_out(names):
        _logger.warning(text)
    return tuple(name for name in names if not optional_packages.missing(name))
