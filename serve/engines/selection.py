"""Selects the engine for a model on this machine: the fastest that reproduces training's scores.

Each candidate must pass the acceptance check on the evaluation sample. The selection is stored in
the version's `exports` folder.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import TypeAdapter, ValidationError

from jobs.errors import DeployError, first_line
from jobs.spec.quantities import format_metric
from jobs.spec.serve import EngineName
from jobs.spec.task import Activation
from jobs.spec.train import Precision
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.memory import is_out_of_memory
from jobs.training.probing import environment
from serve.batching.policy import BLOCK_BATCHES, Limits, form_batches
from serve.batching.rows import Logits, Row, Tokenizer
from serve.engines import onnx_engine, openvino_engine, openvino_graph, packages
from serve.engines.captured_engine import CapturedEngine
from serve.engines.curve import Curve
from serve.engines.engine import ACTIVATIONS, Choice, Engine, EngineResult, OneByOne
from serve.engines.torch_engine import TorchEngine
from serve.version import CHOICE_FILE

ACCURACY_DROP, AGREEMENT = 0.005, 0.99
"""Acceptance check: largest loss of accuracy, and smallest share of rows with training's label."""
INVARIANCE = 0.02
"""Acceptance check: largest difference of a row's scores between a full batch and its own batch."""
TIE = 0.05
"""A row with another label counts as equal if none of its scores differs by more than this."""
CHECK_BATCH, CHECK_SINGLE = 32, 48
"""Acceptance check: rows of a batch, and number of rows that are also run one by one."""
TIMING_THRESHOLD = 0.6
"""An engine with less than this share of the best throughput so far is not timed further."""
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
"""Padded tokens of a batch if none was measured."""
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
REFERENCE: EngineName = "torch-fp32"


CHOICE = TypeAdapter(Choice)
BLANK = Row((0, 0), ())
"""The pattern row of a version without an evaluation sample."""


@dataclass(frozen=True, slots=True)
class EvalSample:
    """A version's evaluation sample: the rows and scores of the acceptance check."""

    rows: tuple[Row, ...]
    labels: tuple[int, ...]
    """Index of each row's label."""
    scores: Logits | None = None
    """Scores in training, [rows, labels]; None for a version that was published without scores."""
    activation: Activation = "softmax"
    """Function from an engine's logits to scores."""

    @property
    def pattern(self) -> Row:
        """The longest row, from whose tokens warm-up rows of any length are built."""
        return max(self.rows, key=len, default=BLANK)


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """Creates the engines of one published model on one device; caches exported graphs."""

    model: Path
    exports: Path
    tokenizer: Tokenizer
    device: Device
    threads: int

    def make(self, name: EngineName, sample: EvalSample) -> Engine:
        """Creates an engine; exports the model first if the graph does not exist.

        Raises whatever the engine's library raises if the model or the machine does not suit it,
        DeployError if the engine's packages are not installed.
        """
        if refusal := packages.refusal(name):
            raise DeployError(refusal)
        library, _, precision = name.partition("-")
        if library == "torch":
            return self._torch(cast("Precision", precision), sample)
        if library == "onnx":
            graph = self._exported("model.onnx", self._export_onnx)
            return onnx_engine.OnnxEngine(graph, self.tokenizer, self.threads)
        graph = self._exported("openvino-rows.xml", self._export_openvino)
        if precision == "int8":

            def quantize(target: Path) -> None:
                openvino_graph.quantize(graph, self.tokenizer, sample.rows, target)

            graph = self._exported("openvino-rows-int8.xml", quantize)
        return openvino_engine.OpenVinoEngine(graph, self.tokenizer, name, self.threads)

    def _torch(self, precision: Precision, sample: EvalSample) -> Engine:
        """Creates a torch engine; with CUDA graphs on a GPU, unless the model cannot be captured.

        T5, for example, cannot, because it synchronises with the host.
        """
        captured = self._captured(precision, sample) if self.device == "cuda" else None
        return captured or TorchEngine(
            self.model, self.tokenizer, precision, self.device, self.threads
        )

    def _captured(self, precision: Precision, sample: EvalSample) -> Engine | None:
        engine = CapturedEngine(self.model, self.tokenizer, precision)
        try:
            engine.run([sample.pattern])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None
        return engine

    def _export_onnx(self, target: Path) -> None:
        onnx_engine.export(self.model, self.tokenizer, target)

    def _export_openvino(self, target: Path) -> None:
        openvino_graph.export(self.model, self.tokenizer, target)

    def _exported(self, name: str, export: Callable[[Path], None]) -> Path:
        """Returns a file of the exports folder, and exports it if it does not exist.

        The file is written in a temporary folder and moved, so that it is never incomplete.
        """
        target = self.exports / name
        if not target.exists():
            partial = self.exports / f".{os.getpid()}"
            partial.mkdir(parents=True, exist_ok=True)
            export(partial / name)
            for file in sorted(partial.iterdir(), key=lambda path: path.name == name):
                file.replace(self.exports / file.name)  # weights before the graph that names them
            partial.rmdir()
        return target


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
        best = max((result.texts_per_s for result in results if not result.refusal), default=0.0)
        results.append(_try(factory, name, check, best, is_timed=is_timed))
    if REFERENCE not in names and all(result.refusal for result in results):
        results.append(_try(factory, REFERENCE, check, 0.0, is_timed=is_timed))
    allowed = [result for result in results if not result.refusal]
    is_one_by_one = not allowed
    if is_one_by_one:
        allowed = [_try_one_by_one(factory, check, results)]
    chosen = max(allowed, key=lambda result: result.texts_per_s)
    choice = Choice(
        chosen.engine, chosen.batch_tokens, chosen.texts_per_s, tuple(results), is_one_by_one
    )
    _write_choice(factory, names, choice)
    return choice


def expected_scores(factory: EngineFactory, sample: EvalSample) -> Logits:
    """Returns the reference scores, [rows, labels]: training's, or else those of torch in fp32."""
    if sample.scores is not None:
        return sample.scores
    return scores(factory.make(REFERENCE, sample), sample.rows, CHECK_BATCH, sample.activation)


def curves(
    factory: EngineFactory, names: Sequence[EngineName], sample: EvalSample, sizes: Sequence[int]
) -> list[Curve]:
    """Measures the batch times of each engine that passes the acceptance check.

    Args:
        factory: Creates the engines.
        names: Engines to measure.
        sample: The evaluation sample.
        sizes: Rows of the batches; each batch has rows of similar length.

    Raises:
        DeployError: if the model has no evaluation sample.
    """
    if not sample.rows:
        raise DeployError(
            f"{factory.model} has no evaluation sample, which timing its engines needs; publish the"
            " model again"
        )
    check = AcceptanceCheck(sample, expected_scores(factory, sample))
    measured = []
    for name in names:
        try:
            engine = factory.make(name, sample)
            refusal = check.run(engine).refusal
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            refusal = f"cannot be created: {first_line(error)}"
        rows = sorted(sample.rows, key=len)
        seconds = None if refusal else {size: _batch_s(engine, rows, size) for size in sizes}
        measured.append(Curve("", name, refusal, seconds))
    return measured


def _batch_s(engine: Engine, rows: Sequence[Row], size: int) -> float:
    many = list(itertools.islice(itertools.cycle(rows), max(size, len(rows))))
    batches = [many[first : first + size] for first in range(0, len(many) - size + 1, size)]
    spent = [seconds(engine, batch) for batch in [batches[0], *batches]][1:]
    while sum(spent) < TIMED_S:
        spent += [seconds(engine, batch) for batch in batches]
    return sum(spent) / len(spent)


def seconds(engine: Engine, batch: Sequence[Row]) -> float:
    """Runs one batch and returns its duration in seconds."""
    begin = time.perf_counter()
    engine.run(batch)
    return time.perf_counter() - begin


def _try(
    factory: EngineFactory,
    name: EngineName,
    check: "AcceptanceCheck",
    best_texts_per_s: float,
    *,
    is_timed: bool,
) -> EngineResult:
    try:
        engine = factory.make(name, check.sample)
        result = check.run(engine)
    except Exception as error:  # noqa: BLE001 - each library has its own errors
        reason = first_line(error)
        return EngineResult(name, refusal=f"cannot be created: {reason}")
    if result.refusal or result.texts_per_s < TIMING_THRESHOLD * best_texts_per_s:
        return result
    if not is_timed:
        tokens = PACKED_TOKENS if engine.is_packed else DEFAULT_TOKENS[factory.device]
        return replace(result, batch_tokens=tokens)
    return measure(result, engine, check.sample, factory.device)


def _try_one_by_one(
    factory: EngineFactory, check: "AcceptanceCheck", results: Sequence[EngineResult]
) -> EngineResult:
    """Checks torch in fp32 with one row per batch; raises DeployError if that fails too."""
    result = check.run(OneByOne(factory.make(REFERENCE, check.sample)))
    if result.refusal:
        reasons = "; ".join(f"{each.engine}: {each.refusal}" for each in (*results, result))
        raise DeployError(
            f"{factory.model.name} is not served, because no engine reproduces training's scores of"
            f" its evaluation sample ({reasons})"
        )
    return replace(result, batch_tokens=DEFAULT_TOKENS[factory.device])


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """Compares an engine's scores of the evaluation sample with the reference scores.

    An engine passes if its scores are finite, its labels and its accuracy are those of training,
    and a row's scores do not depend on the other rows of its batch.
    """

    sample: EvalSample
    reference: Logits
    """Reference scores, [rows, labels]."""

    def run(self, engine: Engine) -> EngineResult:
        """Checks an engine; the result has a refusal if it fails."""
        rows = self.sample.rows
        engine.run(rows[:CHECK_BATCH])
        begin = time.perf_counter()
        together = scores(engine, rows, CHECK_BATCH, self.sample.activation)
        spent_s = time.perf_counter() - begin
        alone = scores(engine, rows[:CHECK_SINGLE], 1, self.sample.activation)
        agreement = self._agreement(together)
        accuracy, before = self._accuracy(together), self._accuracy(self.reference)
        spread = float(np.abs(alone - together[: len(alone)]).max())
        refusal = ""
        if not np.isfinite(together).all():
            refusal = "its scores contain NaN or infinity"
        elif agreement < AGREEMENT:
            what = "another label" if self._has_labels else "other scores"
            refusal = f"it gives {1 - agreement:.1%} of the rows {what} than training"
        elif accuracy is not None and before is not None and before - accuracy > ACCURACY_DROP:
            shown = format_metric(accuracy), format_metric(before)
            refusal = f"its accuracy is {shown[0]}, and {shown[1]} in training"
        elif spread > INVARIANCE:
            refusal = f"a text's score changes by {spread:.3f} with the other texts of its batch"
        return EngineResult(
            engine.name,
            refusal,
            texts_per_s=len(rows) / spent_s,
            agreement=agreement,
            accuracy=accuracy,
        )

    def _agreement(self, actual: Logits) -> float:
        """Returns the share of rows with the reference scores, within TIE, or reference label."""
        is_same = np.abs(actual - self.reference).max(axis=1) <= TIE
        if self._has_labels:
            is_same |= actual.argmax(axis=1) == self.reference.argmax(axis=1)
        return float(is_same.mean())

    def _accuracy(self, actual: Logits) -> float | None:
        if not self._has_labels:
            return None
        return float((actual.argmax(axis=1) == np.array(self.sample.labels)).mean())

    @property
    def _has_labels(self) -> bool:
        """True if a row's label is the one with the highest score."""
        return self.sample.activation == "softmax"


def scores(
    engine: Engine, rows: Sequence[Row], batch: int, activation: Activation = "softmax"
) -> Logits:
    """Returns the scores of rows, [rows, labels], run in batches of `batch` rows in their order."""
    pieces = [engine.run(rows[first : first + batch]) for first in range(0, len(rows), batch)]
    return ACTIVATIONS[activation](np.concatenate(pieces))


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
    alone = []
    for row in sorted(rows, key=len)[:: max(1, len(rows) // 20)]:
        begin = time.perf_counter()
        engine.run([row])
        alone.append(time.perf_counter() - begin)
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


def read_eval_sample(folder: Path, activation: Activation = "softmax") -> EvalSample:
    """Reads the evaluation sample in a model's folder; without rows if the folder has none."""
    rows = eval_sample.read(folder)
    scores = [row.scores for row in rows if row.scores]
    return EvalSample(
        tuple(Row(row.ids, row.types) for row in rows),
        tuple(row.label for row in rows),
        np.array(scores, dtype=np.float32) if scores else None,
        activation,
    )


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
    factory.exports.mkdir(parents=True, exist_ok=True)
    partial = factory.exports / f".{CHOICE_FILE}-{os.getpid()}"
    value = {"for": _key(factory, names), "choice": asdict(choice)}
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(factory.exports / CHOICE_FILE)
