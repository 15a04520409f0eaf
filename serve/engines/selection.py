"""Selects the engine for a model on this machine: the fastest that reproduces training's scores.

Each candidate must pass the acceptance check on the evaluation sample. The selection is stored in
the version's `exports` folder.
"""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
from pydantic import TypeAdapter, ValidationError

from jobs.errors import DeployError, first_line
from jobs.spec.serve import EngineName
from jobs.storage import files
from jobs.training.config import Device
from jobs.training.probing import environment
from serve.batching.policy import BLOCK_BATCHES, Limits, form_batches
from serve.batching.rows import Row
from serve.engines.acceptance import REFERENCE, AcceptanceCheck, batch_of, expected_scores
from serve.engines.engine import Choice, Engine, EngineResult, OneByOne, run_s
from serve.engines.engine_factory import EngineFactory, EvalSample
from serve.engines.timing_curve import Curve
from serve.version import CHOICE_FILE

TIMING_THRESHOLD = 0.6
"""An engine whose batch of the check has less than this share of the best throughput of such a
batch so far is not timed further. The check's own throughput would not do: on a GPU, it includes
the capture of each shape."""
CHECK_THRESHOLD = 0.25
"""An engine whose batch of the check has less than this share of the best throughput of such a
batch so far is not checked."""
BUDGETS: dict[Device, tuple[int, ...]] = {
    "cpu": (256, 512, 768),
    "cuda": (2048, 4096, 8192),
}
"""Candidates for the padded tokens of a batch; the one with the highest throughput is used."""
PACKED_TOKENS = 512
"""Tokens of a batch for an engine that packs rows. 256 are 2 to 5 % slower; 768 are 4 to 5 % faster
for longer texts and no faster for short ones, with a longer wait for all. Measured in
benchmarks/HISTORY.md."""
DEFAULT_TOKENS: dict[Device, int] = {"cpu": 256, "cuda": 4096}
"""Padded tokens of a batch if none was measured; see `default_tokens`."""
WAITING: dict[Device, int] = {"cpu": 32, "cuda": 512}
"""Length of the queue, in texts, while a budget is timed."""
WARM_S, TIMED_S = 0.2, 0.4
"""Warm-up before a budget is timed, and least duration of the timing, in seconds."""

CPU_ENGINES: tuple[EngineName, ...] = (
    "openvino-int8",
    "openvino-bf16",
    "openvino-fp32",
    "onnx-fp32",
    "torch-bf16",
    "torch-fp32",
)
GPU_ENGINES: tuple[EngineName, ...] = ("torch-bf16", "torch-fp16", "torch-fp32")


CHOICE = TypeAdapter(Choice)


def choose(
    factory: EngineFactory,
    names: Sequence[EngineName],
    sample: EvalSample,
    *,
    is_timed: bool = True,
) -> Choice:
    """Selects the fastest engine that passes the acceptance check.

    A stored selection for the same environment is returned at once. An engine that cannot be
    created is refused with the reason. If every candidate is refused, torch in fp32 is tried, and
    then torch in fp32 with one row per batch.

    Args:
        factory: Creates the engines.
        names: Candidates, in the order in which they are tried.
        sample: The evaluation sample; must have rows.
        is_timed: Measure the best batch size of each engine; otherwise it is DEFAULT_TOKENS.

    Raises:
        DeployError: if no engine reproduces training's scores, not even with one row per batch.
    """
    stored = _read_choice(factory, names)
    if stored:
        return stored
    check = AcceptanceCheck(sample, expected_scores(factory, sample))
    results: list[EngineResult] = []
    for name in names:
        allowed = [result for result in results if not result.refusal]
        results.append(_try(factory, name, check, allowed, is_timed=is_timed))
    if REFERENCE not in names and all(result.refusal for result in results):
        results.append(_try(factory, REFERENCE, check, (), is_timed=is_timed))
    allowed = [result for result in results if not result.refusal]
    is_one_by_one = not allowed
    if is_one_by_one:
        allowed = [_try_one_by_one(factory, check, results)]
    # the throughput of an engine that was not timed is that of its check
    chosen = max(allowed, key=lambda result: (result.alone_ms is not None, result.texts_per_s))
    choice = Choice(
        chosen.engine, chosen.batch_tokens, chosen.texts_per_s, tuple(results), is_one_by_one
    )
    _write_choice(factory, names, choice)
    return choice


def curves(
    factory: EngineFactory,
    names: Sequence[EngineName],
    sample: EvalSample,
    sizes: Sequence[int],
    accelerators: str,
) -> list[Curve]:
    """Measures the batch times of each engine that passes the acceptance check.

    Args:
        factory: Creates the engines.
        names: Engines to measure.
        sample: The evaluation sample.
        sizes: Rows of the batches; each batch has rows of similar length.
        accelerators: Accelerator and count of the device, such as `T4:1`.

    Raises:
        DeployError: if the model has no evaluation sample.
    """
    if not sample.rows:
        raise DeployError(
            f"{factory.model} has no evaluation sample, which timing its engines needs; publish the"
            " model again"
        )
    check = AcceptanceCheck(sample, expected_scores(factory, sample))
    rows, measured = sorted(sample.rows, key=len), list[Curve]()
    for name in names:
        engine, result = _checked(factory, name, check)
        seconds = None
        if engine and not result.refusal:
            seconds = {size: _batch_s(engine, rows, size) for size in sizes}
        measured.append(Curve(accelerators, name, result.refusal, seconds))
    return measured


def _checked(
    factory: EngineFactory,
    name: EngineName,
    check: AcceptanceCheck,
    least_texts_per_s: float = 0.0,
) -> tuple[Engine | None, EngineResult]:
    """Creates an engine and checks it; an engine that cannot be created is None and refused.

    An engine that is below `least_texts_per_s` in a batch is refused unchecked: its check could
    take minutes.
    """
    try:
        engine = factory.make(name, check.sample)
        rate = _batch_rate(engine, check.sample)
        if rate >= least_texts_per_s:
            return engine, replace(check.run(engine), batch_texts_per_s=rate)
        refusal = f"it is not checked: {rate:.3g} texts/s in a batch, a quarter of another engine's"
        return engine, EngineResult(
            engine.name, refusal, texts_per_s=rate, agreement=0.0, batch_texts_per_s=rate
        )
    except Exception as error:  # noqa: BLE001 - each library has its own errors
        reason = first_line(error)
        return None, EngineResult(name, refusal=f"cannot be created: {reason}")


def _batch_rate(engine: Engine, sample: EvalSample) -> float:
    """Returns the texts per second of a batch of the check's size, after a first one."""
    size = batch_of(sample.activation)
    rows = sample.rows[:: max(1, len(sample.rows) // size)][:size]
    engine.run(rows)
    return len(rows) / run_s(engine, rows)


def _batch_s(engine: Engine, rows: Sequence[Row], size: int) -> float:
    many = list(itertools.islice(itertools.cycle(rows), max(size, len(rows))))
    batches = [many[first : first + size] for first in range(0, len(many) - size + 1, size)]
    spent = [run_s(engine, batch) for batch in [batches[0], *batches]][1:]
    while sum(spent) < TIMED_S:
        spent += [run_s(engine, batch) for batch in batches]
    return sum(spent) / len(spent)


def _try(
    factory: EngineFactory,
    name: EngineName,
    check: AcceptanceCheck,
    allowed: Sequence[EngineResult],
    *,
    is_timed: bool,
) -> EngineResult:
    """Checks and times an engine; `allowed` are the results of those that passed before."""
    best = max((each.batch_texts_per_s for each in allowed), default=0.0)
    engine, result = _checked(factory, name, check, CHECK_THRESHOLD * best)
    is_slow = result.batch_texts_per_s < TIMING_THRESHOLD * best
    if engine is None or result.refusal or is_slow:
        return result
    if not is_timed:
        return replace(result, batch_tokens=default_tokens(engine, factory.device))
    return measure(result, engine, check.sample, factory.device)


def _try_one_by_one(
    factory: EngineFactory, check: AcceptanceCheck, results: Sequence[EngineResult]
) -> EngineResult:
    """Checks torch in fp32 with one row per batch; raises DeployError if that fails too."""
    engine = OneByOne(factory.make(REFERENCE, check.sample))
    result = check.run(engine)
    if result.refusal:
        reasons = "; ".join(f"{each.engine}: {each.refusal}" for each in (*results, result))
        raise DeployError(
            f"{factory.model.name} is not served, because no engine reproduces training's scores of"
            f" its evaluation sample ({reasons})"
        )
    return replace(result, batch_tokens=default_tokens(engine, factory.device))


def default_tokens(engine: Engine, device: Device) -> int:
    """Returns the padded tokens of a batch for an engine that is not timed."""
    return PACKED_TOKENS if engine.is_packed else DEFAULT_TOKENS[device]


def measure(
    result: EngineResult, engine: Engine, sample: EvalSample, device: Device
) -> EngineResult:
    """Measures an engine's throughput for each budget of tokens, and its time for one row.

    Returns the given result with the best budget, its throughput and the median single-row time.
    """
    rows, waiting = sample.rows, WAITING[device]
    served = Limits(
        batch_rows=waiting, block_batches=BLOCK_BATCHES[device], is_packed=engine.is_packed
    )
    rates = {
        budget: _rate(engine, rows, replace(served, batch_tokens=budget), waiting)
        for budget in ((PACKED_TOKENS,) if engine.is_packed else BUDGETS[device])
    }
    best = max(rates, key=rates.__getitem__)
    alone = [run_s(engine, [row]) for row in sorted(rows, key=len)[:: max(1, len(rows) // 20)]]
    return replace(
        result,
        texts_per_s=rates[best],
        alone_ms=1000 * float(np.median(alone)),
        batch_tokens=best,
    )


def _rate(engine: Engine, rows: Sequence[Row], limits: Limits, waiting: int) -> float:
    """Returns texts per second with a queue of `waiting` texts, refilled after each block."""
    stream = itertools.cycle(rows)
    queue = list(itertools.islice(stream, waiting))
    begin, count = time.perf_counter(), 0
    is_warm = False
    while not is_warm or time.perf_counter() - begin < TIMED_S:
        batches = form_batches([len(row) for row in queue], limits)
        for batch in batches:
            engine.run([queue[index] for index in batch])
            count += len(batch)
        taken = {index for batch in batches for index in batch}
        queue = [row for index, row in enumerate(queue) if index not in taken]
        queue += itertools.islice(stream, len(taken))
        if not is_warm and time.perf_counter() - begin > WARM_S:
            begin, count, is_warm = time.perf_counter(), 0, True
    return count / (time.perf_counter() - begin)


def _key(factory: EngineFactory, names: Sequence[EngineName]) -> dict[str, str]:
    """Returns the environment and settings for which a stored selection is valid."""
    machine = environment.describe(factory.device)
    tokens = str(PACKED_TOKENS)
    return {**machine, "names": ",".join(names), "threads": str(factory.threads), "tokens": tokens}


def _read_choice(factory: EngineFactory, names: Sequence[EngineName]) -> Choice | None:
    try:
        stored = json.loads((factory.exports / CHOICE_FILE).read_bytes())
        if stored["for"] != _key(factory, names):
            return None
        return CHOICE.validate_python(stored["choice"])
    except (OSError, ValueError, KeyError, ValidationError):
        return None


def _write_choice(factory: EngineFactory, names: Sequence[EngineName], choice: Choice) -> None:
    value = {"for": _key(factory, names), "choice": asdict(choice)}
    text = json.dumps(value, indent=2) + "\n"
    files.write_atomically(factory.exports / CHOICE_FILE, text.encode())
