"""Which engine serves a model on this machine: the fastest whose scores are those of training."""

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
from serve.batching.policy import BLOCK_BATCHES, Limits, block
from serve.batching.rows import Logits, Row, Tokenizer
from serve.engines import onnx_engine, openvino_engine, openvino_graph, packages
from serve.engines.captured_engine import CapturedEngine
from serve.engines.curve import Curve
from serve.engines.engine import ACTIVATIONS, Choice, Engine, EngineResult, OneByOne
from serve.engines.torch_engine import TorchEngine
from serve.version import CHOICE_FILE

ACCURACY_DROP, AGREEMENT = 0.005, 0.99
"""Most accuracy that an engine may lose, and least share of labels that must stay the same."""
INVARIANCE = 0.02
"""Most that the score of a row may change with the rows beside it."""
TIE = 0.05
"""A row may get another label if none of its scores changes by more than this."""
TOGETHER, ALONE = 32, 48
"""Rows that are judged at once, and how many are judged once more by themselves."""
HOPELESS = 0.6
"""An engine that is this much slower at the gate than the best so far is not timed further."""
BUDGETS: dict[Device, tuple[int, ...]] = {
    "cpu": (256, 512, 768),
    "cuda": (2048, 4096, 8192),
}
"""Padded tokens of a batch, among which the fastest is taken."""
PACKED_TOKENS = 512
"""Tokens of a batch of an engine that packs. With half as many it is 2 to 5 % slower; with half as
many again 4 to 5 % faster for longer texts, no faster for short ones, and all wait longer. Measured
in benchmarks/HISTORY.md."""
DEFAULT_TOKENS: dict[Device, int] = {"cpu": 256, "cuda": 4096}
"""Padded tokens of a batch where no other was measured."""
WAITING: dict[Device, int] = {"cpu": 32, "cuda": 512}
"""Texts that wait while a budget is timed."""
WARM_S, TIMED_S = 0.2, 0.4
"""How long an engine is run before a budget is timed, and how long it is timed at least."""

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
"""Stands for a row of a version that has none."""


@dataclass(frozen=True, slots=True)
class GateRows:
    """What engines are judged by."""

    rows: tuple[Row, ...]
    labels: tuple[int, ...]
    scores: Logits | None = None
    """Scores of training, [rows, scores]; None of versions published without."""
    activation: Activation = "softmax"
    """What makes scores of an engine's logits."""

    @property
    def pattern(self) -> Row:
        """The longest row; rows for warming up repeat its tokens, and keep its first and last."""
        return max(self.rows, key=len, default=BLANK)


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """Makes engines of one published model on one device, with exported files kept in a folder."""

    model: Path
    exports: Path
    tokenizer: Tokenizer
    device: Device
    threads: int

    def make(self, name: EngineName, gate: GateRows) -> Engine:
        """A loaded engine; exports the model first where that was not done.

        Raises DeployError if the packages of the engine are not installed.
        """
        if refusal := packages.refusal(name):
            raise DeployError(refusal)
        library, _, precision = name.partition("-")
        if library == "torch":
            return self._torch(cast("Precision", precision), gate)
        if library == "onnx":
            graph = self._exported("model.onnx", self._export_onnx)
            return onnx_engine.OnnxEngine(graph, self.tokenizer, self.threads)
        graph = self._exported("openvino-rows.xml", self._export_openvino)
        if precision == "int8":

            def quantize(target: Path) -> None:
                openvino_graph.quantize(graph, self.tokenizer, gate.rows, target)

            graph = self._exported("openvino-rows-int8.xml", quantize)
        return openvino_engine.OpenVinoEngine(graph, self.tokenizer, name, self.threads)

    def _torch(self, precision: Precision, gate: GateRows) -> Engine:
        """With captured batches on a GPU, unless the model waits for the host, as T5 does."""
        captured = self._captured(precision, gate) if self.device == "cuda" else None
        return captured or TorchEngine(
            self.model, self.tokenizer, precision, self.device, self.threads
        )

    def _captured(self, precision: Precision, gate: GateRows) -> Engine | None:
        engine = CapturedEngine(self.model, self.tokenizer, precision)
        try:
            engine.run([gate.pattern])
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
        """A file of the exports folder, made in another one first, so that none is half done."""
        target = self.exports / name
        if not target.exists():
            partial = self.exports / f".{os.getpid()}"
            partial.mkdir(parents=True, exist_ok=True)
            export(partial / name)
            for made in sorted(partial.iterdir(), key=lambda path: path.name == name):
                made.replace(self.exports / made.name)  # weights before the file that names them
            partial.rmdir()
        return target


def choose(
    maker: EngineFactory, names: Sequence[EngineName], gate: GateRows, *, is_timed: bool = True
) -> Choice:
    """Try engines in order and take the fastest that passes the gate; remembered for the machine.

    An engine that cannot be made here is refused with the reason. Where every one fails, torch in
    fp32 serves; where that fails too, it runs rows one by one, if that gives the scores of
    training. Without `is_timed` the first that passes is taken.

    Raises:
        DeployError: if no engine gives the scores of training, not even for rows by themselves.
    """
    remembered = _remembered(maker, names)
    if remembered:
        return remembered
    judge = Judge(gate, expected_scores(maker, gate))
    trials: list[EngineResult] = []
    for name in names:
        best = max((trial.texts_per_s for trial in trials if not trial.refusal), default=0.0)
        trials.append(_try(maker, name, judge, best, is_timed=is_timed))
    if REFERENCE not in names and all(trial.refusal for trial in trials):
        trials.append(_try(maker, REFERENCE, judge, 0.0, is_timed=is_timed))
    allowed = [trial for trial in trials if not trial.refusal]
    is_one_by_one = not allowed
    if is_one_by_one:
        allowed = [_try_one_by_one(maker, judge, trials)]
    chosen = max(allowed, key=lambda trial: trial.texts_per_s)
    choice = Choice(
        chosen.engine, chosen.batch_tokens, chosen.texts_per_s, tuple(trials), is_one_by_one
    )
    _remember(maker, names, choice)
    return choice


def expected_scores(maker: EngineFactory, gate: GateRows) -> Logits:
    """Probabilities that engines answer to: of training, else of torch in fp32."""
    if gate.scores is not None:
        return gate.scores
    return scores(maker.make(REFERENCE, gate), gate.rows, TOGETHER, gate.activation)


def curves(
    maker: EngineFactory, names: Sequence[EngineName], gate: GateRows, sizes: Sequence[int]
) -> list[Curve]:
    """Mean time of batches of so many neighbours in length, for each engine that passes the gate.

    Raises DeployError for a model without evaluation rows.
    """
    if not gate.rows:
        raise DeployError(f"{maker.model} has no evaluation rows beside it to time engines with")
    judge = Judge(gate, expected_scores(maker, gate))
    found = []
    for name in names:
        try:
            engine = maker.make(name, gate)
            refusal = judge.trial(engine).refusal
        except Exception as error:  # noqa: BLE001 - libraries refuse in many ways
            refusal = f"cannot be made: {first_line(error)}"
        rows = sorted(gate.rows, key=len)
        seconds = None if refusal else {size: _batch_s(engine, rows, size) for size in sizes}
        found.append(Curve("", name, refusal, seconds))
    return found


def _batch_s(engine: Engine, rows: Sequence[Row], size: int) -> float:
    many = list(itertools.islice(itertools.cycle(rows), max(size, len(rows))))
    batches = [many[first : first + size] for first in range(0, len(many) - size + 1, size)]
    spent = [seconds(engine, batch) for batch in [batches[0], *batches]][1:]
    while sum(spent) < TIMED_S:
        spent += [seconds(engine, batch) for batch in batches]
    return sum(spent) / len(spent)


def seconds(engine: Engine, batch: Sequence[Row]) -> float:
    """How long one batch takes."""
    begin = time.perf_counter()
    engine.run(batch)
    return time.perf_counter() - begin


def _try(
    maker: EngineFactory,
    name: EngineName,
    judge: "Judge",
    best_texts_per_s: float,
    *,
    is_timed: bool,
) -> EngineResult:
    try:
        engine = maker.make(name, judge.gate)
        trial = judge.trial(engine)
    except Exception as error:  # noqa: BLE001 - libraries refuse models and machines in many ways
        reason = first_line(error)
        return EngineResult(name, refusal=f"cannot be made: {reason}")
    if trial.refusal or trial.texts_per_s < HOPELESS * best_texts_per_s:
        return trial
    if not is_timed:
        tokens = PACKED_TOKENS if engine.is_packed else DEFAULT_TOKENS[maker.device]
        return replace(trial, batch_tokens=tokens)
    return measure(trial, engine, judge.gate, maker.device)


def _try_one_by_one(
    maker: EngineFactory, judge: "Judge", trials: Sequence[EngineResult]
) -> EngineResult:
    """Torch in fp32, a row at a time; raises DeployError if even that scores otherwise."""
    trial = judge.trial(OneByOne(maker.make(REFERENCE, judge.gate)))
    if trial.refusal:
        reasons = "; ".join(f"{each.engine}: {each.refusal}" for each in (*trials, trial))
        raise DeployError(
            f"{maker.model.name} is not served, because no engine gives its evaluation rows the"
            f" scores of training ({reasons})"
        )
    return replace(trial, batch_tokens=DEFAULT_TOKENS[maker.device])


@dataclass(frozen=True, slots=True)
class Judge:
    """The gate: labels as expected, accuracy kept, scores that neighbours do not change."""

    gate: GateRows
    reference: Logits
    """Expected probabilities as [rows, labels]."""

    def trial(self, engine: Engine) -> EngineResult:
        """What the gate says of an engine."""
        rows = self.gate.rows
        engine.run(rows[:TOGETHER])
        begin = time.perf_counter()
        together = scores(engine, rows, TOGETHER, self.gate.activation)
        spent_s = time.perf_counter() - begin
        alone = scores(engine, rows[:ALONE], 1, self.gate.activation)
        agreement = self._agreement(together)
        accuracy, before = self._accuracy(together), self._accuracy(self.reference)
        spread = float(np.abs(alone - together[: len(alone)]).max())
        refusal = ""
        if not np.isfinite(together).all():
            refusal = "its scores are not numbers"
        elif agreement < AGREEMENT:
            what = "another label" if self._has_labels else "other scores"
            refusal = f"it gives {1 - agreement:.1%} of the rows {what} than training"
        elif accuracy is not None and before is not None and before - accuracy > ACCURACY_DROP:
            shown = format_metric(accuracy), format_metric(before)
            refusal = f"its accuracy is {shown[0]}, and {shown[1]} in training"
        elif spread > INVARIANCE:
            refusal = f"the score of a text changes by {spread:.3f} with the texts beside it"
        return EngineResult(
            engine.name,
            refusal,
            texts_per_s=len(rows) / spent_s,
            agreement=agreement,
            accuracy=accuracy,
        )

    def _agreement(self, found: Logits) -> float:
        """Share of rows with the scores of training, or of labels with the label of training."""
        is_same = np.abs(found - self.reference).max(axis=1) <= TIE
        if self._has_labels:
            is_same |= found.argmax(axis=1) == self.reference.argmax(axis=1)
        return float(is_same.mean())

    def _accuracy(self, found: Logits) -> float | None:
        if not self._has_labels:
            return None
        return float((found.argmax(axis=1) == np.array(self.gate.labels)).mean())

    @property
    def _has_labels(self) -> bool:
        """Whether a row's highest score is that of its label."""
        return self.gate.activation == "softmax"


def scores(
    engine: Engine, rows: Sequence[Row], batch: int, activation: Activation = "softmax"
) -> Logits:
    """Scores as [rows, scores], of rows that are run in batches of this many as they come."""
    pieces = [engine.run(rows[first : first + batch]) for first in range(0, len(rows), batch)]
    return ACTIVATIONS[activation](np.concatenate(pieces))


def measure(trial: EngineResult, engine: Engine, gate: GateRows, device: Device) -> EngineResult:
    """A trial with the engine's speed: the best budget of tokens, and one row by itself."""
    rows, waiting = gate.rows, WAITING[device]
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
        trial,
        texts_per_s=rates[best],
        alone_ms=1000 * float(np.median(alone)),
        batch_tokens=best,
    )


def _rate(engine: Engine, rows: Sequence[Row], limits: Limits, waiting: int) -> float:
    """Texts per second while so many wait and each answer brings the next, as they come."""
    coming = itertools.cycle(rows)
    queue = list(itertools.islice(coming, waiting))
    begin, count = time.perf_counter(), 0
    is_warm = False
    while not is_warm or time.perf_counter() - begin < TIMED_S:
        batches = block([len(row) for row in queue], limits)
        for batch in batches:
            engine.run([queue[index] for index in batch])
            count += len(batch)
        taken = {index for batch in batches for index in batch}
        queue = [row for index, row in enumerate(queue) if index not in taken]
        queue += itertools.islice(coming, len(taken))
        if not is_warm and time.perf_counter() - begin > WARM_S:
            begin, count, is_warm = time.perf_counter(), 0, True
    return count / (time.perf_counter() - begin)


def read_gate(folder: Path, activation: Activation = "softmax") -> GateRows:
    """The rows saved beside a model; none where it was saved without."""
    found = eval_sample.read(folder)
    kept = [row.scores for row in found if row.scores]
    return GateRows(
        tuple(Row(row.ids, row.types) for row in found),
        tuple(row.label for row in found),
        np.array(kept, dtype=np.float32) if kept else None,
        activation,
    )


def _key(maker: EngineFactory, names: Sequence[EngineName]) -> dict[str, str]:
    """What a choice holds for."""
    found = environment.describe(maker.device)
    tokens = str(PACKED_TOKENS)
    return {**found, "names": ",".join(names), "threads": str(maker.threads), "tokens": tokens}


def _remembered(maker: EngineFactory, names: Sequence[EngineName]) -> Choice | None:
    try:
        found = json.loads((maker.exports / CHOICE_FILE).read_bytes())
        return (
            CHOICE.validate_python(found["choice"]) if found["for"] == _key(maker, names) else None
        )
    except (OSError, ValueError, KeyError, ValidationError):
        return None


def _remember(maker: EngineFactory, names: Sequence[EngineName], choice: Choice) -> None:
    maker.exports.mkdir(parents=True, exist_ok=True)
    partial = maker.exports / f".{CHOICE_FILE}-{os.getpid()}"
    value = {"for": _key(maker, names), "choice": asdict(choice)}
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(maker.exports / CHOICE_FILE)
