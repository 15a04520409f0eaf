"""Creates engines for a model, and reads the evaluation sample that they are checked by."""

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from jobs.errors import DeployError
from jobs.spec import task_registry
from jobs.spec.serve import EngineName
from jobs.spec.task import PER_TOKEN, Activation
from jobs.spec.train import Precision
from jobs.storage import files
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.eval_sample import SampleRow
from jobs.training.out_of_memory import is_out_of_memory
from serve.batching.rows import Logits, Row, Tokenizer
from serve.engines import onnx_engine, openvino_engine, openvino_graph, optional_packages
from serve.engines.captured_engine import CapturedEngine
from serve.engines.engine import ROW_HEAD, Engine, Head
from serve.engines.torch_engine import TorchEngine
from serve.version import ModelVersion

BLANK = Row((0, 0), ())
"""The pattern row of a version without an evaluation sample."""


@dataclass(frozen=True, slots=True)
class EvalSample:
    """A version's evaluation sample: the rows and scores of the acceptance check."""

    rows: tuple[Row, ...]
    labels: tuple[int | float | Sequence[float], ...]
    """Index of the label of each scored item, a row or a token, or the numbers that the task learns
    of a row."""
    scores: Logits | None = None
    """Scores in training, [items, labels]; None for a version that was published without scores."""
    activation: Activation = "softmax"
    """Function from an engine's logits to scores."""
    spread: tuple[float, ...] = ()
    """Unit in which differences of each score count; 1 for all if empty."""
    tokens: npt.NDArray[np.int64] | None = None
    """Places of the scored tokens among those of all rows, [items]; None if rows are scored."""

    def items(self, scores: Logits) -> Logits:
        """Returns the scores that training's are compared with, from an engine's of all rows."""
        return scores if self.tokens is None else scores[self.tokens]

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
    head: Head = ROW_HEAD

    @classmethod
    def of(
        cls, version: ModelVersion, device: Device, threads: int, exports: Path | None = None
    ) -> "EngineFactory":
        """Returns the factory of a version's engines.

        Args:
            version: The version; its files must be on this machine.
            device: Device of the engines.
            threads: Threads of an engine on a CPU.
            exports: Folder for exported graphs; the version's own by default.
        """
        folder, is_gpu = Path(version.path), device == "cuda"
        # a GPU is faster than one core tokenises
        tokenizer = Tokenizer(folder, version.max_length, is_spread=is_gpu)
        head = Head.of(task_registry.find(version.task))
        return cls(folder, exports or Path(version.exports), tokenizer, device, threads, head)

    def make(self, name: EngineName, sample: EvalSample) -> Engine:
        """Creates an engine; exports the model first if the graph does not exist.

        Raises whatever the engine's library raises if the model or the machine does not suit it,
        DeployError if the engine's packages are not installed.
        """
        if refusal := optional_packages.refusal(name):
            raise DeployError(refusal)
        library, _, precision = name.partition("-")
        if library == "torch":
            return self._torch(cast("Precision", precision), sample)
        if library == "onnx":
            graph = self._exported("model.onnx", self._export_onnx)
            return onnx_engine.OnnxEngine(graph, self.tokenizer, self.threads, self.head)
        graph = self._exported("openvino-rows.xml", self._export_openvino)
        if precision == "int8":

            def quantize(target: Path) -> None:
                openvino_graph.quantize(graph, self.tokenizer, sample.rows, target)

            graph = self._exported("openvino-int8.xml", quantize)
        return openvino_engine.OpenVinoEngine(graph, self.tokenizer, name, self.threads, self.head)

    def _torch(self, precision: Precision, sample: EvalSample) -> Engine:
        """Creates a torch engine; with CUDA graphs on a GPU, unless the model cannot be captured.

        T5, for example, cannot, because it synchronises with the host; nor can a masked language
        model, because batches of a shape differ in their number of hidden tokens.
        """
        is_captured = self.device == "cuda" and not self.head.is_per_hidden
        captured = self._captured(precision, sample) if is_captured else None
        return captured or TorchEngine(
            self.model, self.tokenizer, precision, self.device, self.threads, self.head
        )

    def _captured(self, precision: Precision, sample: EvalSample) -> Engine | None:
        engine = CapturedEngine(self.model, self.tokenizer, precision, self.head)
        try:
            engine.run([sample.pattern])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None
        return engine

    def _export_onnx(self, target: Path) -> None:
        onnx_engine.export(self.model, self.tokenizer, target, self.head)

    def _export_openvino(self, target: Path) -> None:
        openvino_graph.export(self.model, self.tokenizer, target, self.head)

    def _exported(self, name: str, export: Callable[[Path], None]) -> Path:
        """Returns a file of the exports folder, and exports it if it does not exist.

        The file is written in a temporary folder and moved, so that it is never incomplete.
        """
        target = self.exports / name
        if not target.exists():
            partial = files.partial_of(target)
            partial.mkdir(parents=True)
            try:
                export(partial / name)
                # weights before the graph that names them
                for file in sorted(partial.iterdir(), key=lambda path: path.name == name):
                    file.replace(self.exports / file.name)
            finally:
                shutil.rmtree(partial)
        return target


def eval_sample_of(version: ModelVersion) -> EvalSample:
    """Reads the evaluation sample of a version; without rows if the version has none."""
    return read_eval_sample(Path(version.path), task_registry.find(version.task).activation)


def read_eval_sample(folder: Path, activation: Activation = "softmax") -> EvalSample:
    """Reads the evaluation sample in a model's folder; without rows if the folder has none."""
    rows = eval_sample.read(folder)
    scores: list[Any] = [row.scores for row in rows if row.scores]
    own = tuple(_row(row) for row in rows)
    if activation not in PER_TOKEN:
        known = np.array(scores, dtype=np.float32) if scores else None
        spread = eval_sample.spread_of(rows) if scores and activation == "identity" else ()
        return EvalSample(own, tuple(row.label for row in rows), known, activation, spread)
    scored = [eval_sample.scored_tokens(row) for row in rows]
    begins = itertools.accumulate(map(len, own), initial=0)
    return EvalSample(
        own,
        tuple(
            row.token_labels[at] for row, places in zip(rows, scored, strict=True) for at in places
        ),
        np.concatenate([np.array(each, dtype=np.float32) for each in scores]) if scores else None,
        activation,
        tokens=np.array(
            [begin + at for begin, places in zip(begins, scored, strict=False) for at in places]
        ),
    )


def _row(row: SampleRow) -> Row:
    if not row.originals:
        return Row(row.ids, row.types)
    hidden = [at for at, is_trained in enumerate(row.trained) if is_trained]
    return Row(row.ids, row.types, hidden=hidden, originals=[row.originals[at] for at in hidden])
