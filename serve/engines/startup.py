"""From a configuration to a warm batcher: chooses the engine, loads it, runs every shape once."""

import itertools
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from jobs.spec import task_registry
from jobs.spec.serve import EngineName
from jobs.spec.task import Activation
from serve.batching.batcher import Batcher, OnBatch
from serve.batching.policy import Limits, block
from serve.batching.rows import PendingBatch, Row, Tokenizer
from serve.batching.waiting import NOTHING, Saving
from serve.config import ReplicaConfig
from serve.engines import captured_engine, packages, selection
from serve.engines.captured_engine import CapturedEngine
from serve.engines.engine import ACTIVATIONS, Choice, Engine, OneByOne
from serve.engines.openvino_engine import OpenVinoEngine
from serve.engines.packing import USUAL_LENGTHS
from serve.engines.selection import BLANK, EngineFactory, GateRows

_logger = logging.getLogger(__name__)

FEW_ROWS, MANY_ROWS, FIXED_WIDTH, FIXED_TRIALS = 4, 16, 16, 5
"""Rows and tokens of what is run to time what a batch costs whatever is in it, and how often."""
FULL_TRIALS = 5
"""How many full batches are run, and their halves."""
WARMUP_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Widths in tokens that are run once before the first request."""


def start(config: ReplicaConfig, on_batch: OnBatch) -> tuple[Choice, Batcher]:
    """A warm engine behind a batcher; the version's files are on this machine."""
    version = config.version
    is_gpu = config.device == "cuda"  # faster than one core can tokenise
    tokenizer = Tokenizer(Path(version.path), version.max_length, is_spread=is_gpu)
    gate = selection.read_gate(Path(version.path), task_registry.find(version.task).activation)
    choice, engine = prepare(config, tokenizer, gate)
    limits = config.limits(choice.batch_tokens, is_packed=engine.is_packed)
    warm_up(engine, limits, gate, version.max_length)
    ahead = 1 if isinstance(engine, CapturedEngine) else 0
    lengths = [len(row) for row in gate.rows]
    saved = NOTHING if ahead else saving(engine, limits, lengths, version.max_length, gate.pattern)
    return choice, Batcher(
        scored(engine, gate.activation), tokenizer, limits, on_batch, ahead=ahead, saving=saved
    )


def warm_up(engine: Engine, limits: Limits, gate: GateRows, longest: int) -> None:
    """Make and run all that is made for a shape of a batch, and run some widths of lone rows.

    Inputs are taken to be as long as those of the gate, and never longer than `longest`.
    """
    if isinstance(engine, OpenVinoEngine):
        engine.prepare([len(row) for row in gate.rows], limits.batch_tokens)
    if isinstance(engine, CapturedEngine):
        found = captured_engine.shapes(limits.batch_rows, limits.batch_tokens, longest)
    else:
        found = [(1, width) for width in WARMUP_WIDTHS if width <= longest]
    for rows, width in found:
        engine.run([_row(gate.pattern, width)] * rows)


def saving(
    engine: Engine,
    limits: Limits,
    lengths: Sequence[int],
    longest: int,
    pattern: Row = BLANK,
) -> Saving:
    """What one batch costs less than two of half as many: for a few inputs, and for a full batch.

    For a few it is what a batch costs whatever is in it, from the times of a small and a large one.
    A full one of inputs with such lengths may save more, as graphs are made for it. Rows are never
    longer than `longest`.
    """
    width, least = min(FIXED_WIDTH, longest), dict[int, float]()
    for count in (FEW_ROWS, MANY_ROWS) * FIXED_TRIALS:
        least[count] = min(least.get(count, math.inf), _seconds(engine, pattern, [width] * count))
    row_s = (least[MANY_ROWS] - least[FEW_ROWS]) / (MANY_ROWS - FEW_ROWS)
    few_s = max(0.0, least[FEW_ROWS] - FEW_ROWS * row_s)
    coming = itertools.cycle(min(length, longest) for length in lengths or USUAL_LENGTHS)
    full_s = list[float]()  # differences of what is large: a machine that is held up is in them
    for _ in range(FULL_TRIALS):
        waiting = list(itertools.islice(coming, limits.batch_rows))
        whole = [waiting[index] for index in max(block(waiting, limits), key=len)]
        halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        parts_s = sum(_seconds(engine, pattern, half) for half in halves if half)
        full_s.append(parts_s - _seconds(engine, pattern, whole))
    seconds = few_s, max(few_s, statistics.median(full_s))
    return Saving((MANY_ROWS * width, limits.batch_tokens), seconds)


def _seconds(engine: Engine, pattern: Row, lengths: Sequence[int]) -> float:
    return selection.seconds(engine, [_row(pattern, length) for length in lengths])


def _row(pattern: Row, length: int) -> Row:
    """A row of another length with the ends of a real one: some models look for their tokens."""
    inside = pattern.ids[1:-1] or pattern.ids
    inner = itertools.islice(itertools.cycle(inside), max(0, length - 2))
    ids = (pattern.ids[0], *inner, pattern.ids[-1])
    return Row(ids[-length:], (0,) * length)


def scored(engine: Engine, activation: Activation) -> Callable[[Sequence[Row]], PendingBatch]:
    """Launches batches that give scores."""

    def launch(rows: Sequence[Row]) -> PendingBatch:
        landing = engine.launch(rows)
        return lambda: ACTIVATIONS[activation](landing())

    return launch


def prepare(config: ReplicaConfig, tokenizer: Tokenizer, gate: GateRows) -> tuple[Choice, Engine]:
    """The engine to serve with, loaded: the fastest of those that may and that pass the gate.

    Raises DeployError when none does.
    """
    version = config.version
    folder = Path(version.path)
    maker = EngineFactory(folder, Path(version.exports), tokenizer, config.device, config.threads)
    names = engines_for(config)
    if not gate.rows:  # nothing to prove an engine by
        engine = maker.make(names[0] if len(names) == 1 else selection.REFERENCE, gate)
        tokens = (
            selection.PACKED_TOKENS if engine.is_packed else selection.DEFAULT_TOKENS[config.device]
        )
        return Choice(engine.name, tokens, 0.0), engine
    choice = selection.choose(maker, names, gate, is_timed=len(names) > 1)
    engine = maker.make(choice.engine, gate)
    return choice, OneByOne(engine) if choice.is_one_by_one else engine


def engines_for(config: ReplicaConfig) -> tuple[EngineName, ...]:
    """Engines that may serve: the one asked for, or those that compute as asked.

    Of the latter those whose packages are not installed are left out, and the log says so.
    """
    if config.engine:
        return (config.engine,)
    names = selection.CPU_ENGINES if config.device == "cpu" else selection.GPU_ENGINES
    if config.precision is not None:
        wanted = "fp32" if config.precision == "tf32" else config.precision
        names = tuple(name for name in names if name.endswith(f"-{wanted}"))
    if text := packages.left_out(names):
        _logger.warning(text)
    return tuple(name for name in names if not packages.missing(name))
