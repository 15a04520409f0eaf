"""Creates engines for a model, and reads the evaluation sample that they are checked by."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from jobs.errors import DeployError
from jobs.spec import task_registry
from jobs.spec.serve import EngineName
from jobs.spec.task import Activation
from jobs.spec.train import Precision
from jobs.storage import files
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.out_of_memory import is_out_of_memory
from serve.batching.rows import Logits, Row, Tokenizer
from serve.engines import onnx_engine, openvino_engine, openvino_graph, optional_packages
from serve.engines.captured_engine import CapturedEngine
from serve.engines.engine import Engine
from serve.engines.torch_engine import TorchEngine
from serve.version import ModelVersion

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
        return cls(folder, exports or Path(version.exports), tokenizer, device, threads)

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
    scores = [row.scores for row in rows if row.scores]
    return EvalSample(
        tuple(Row(row.ids, row.types) for row in rows),
        tuple(row.label for row in rows),
        np.array(scores, dtype=np.float32) if scores else None,
        activation,
    )
