"""Engine with ONNX Runtime on a CPU, in fp32.

There is no int8 variant: with ONNX Runtime's dynamic quantization the score of a text depends on
the other texts of its batch.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from jobs.spec.serve import EngineName
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Padding, PendingBatch, Row, Tokenizer
from serve.engines.engine import ROW_HEAD, Head, Shape, usual_widths
from serve.engines.openvino_graph import PLACES, example_inputs, padded_arrays, padded_logits
from serve.engines.torch_engine import load_classifier, quiet_tracing

WARNINGS = 3
"""ONNX Runtime's log severity that reports errors only."""
OPSET = 17


class OnnxEngine:
    """Runs padded batches in an ONNX Runtime session with its own threads."""

    name: EngineName = "onnx-fp32"
    is_packed, ahead = False, 0

    def __init__(
        self, graph: Path, tokenizer: Tokenizer, threads: int, head: Head = ROW_HEAD
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = WARNINGS
        self._session = onnxruntime.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"]
        )
        self._names = [port.name for port in self._session.get_inputs()]
        self._padding, self._head = Padding.of(tokenizer), head

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Returns shapes of the usual widths, which are to be run once."""
        return usual_widths(longest)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the logits."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Pads a batch; the returned function computes its logits."""
        inputs = padded_arrays(self._padding, rows, self._names)

        def compute() -> Logits:
            logits = np.asarray(self._session.run(None, inputs)[0], dtype=np.float32)
            return padded_logits(logits, rows, self._padding) if self._head.is_per_token else logits

        return compute


def export(folder: Path, tokenizer: Tokenizer, graph: Path, head: Head = ROW_HEAD) -> None:
    """Writes a model as an ONNX graph with dynamic batch size and width."""
    model, example = load_classifier(folder, head), example_inputs(tokenizer, head)
    free = {0: "rows", 1: "width"}
    axes = {**dict.fromkeys(example, free), "logits": free if head.is_per_token else {0: "rows"}}
    if head.is_per_hidden:
        axes[PLACES] = axes["logits"] = {0: "hidden"}
    with torch.inference_mode(), quiet_tracing():
        torch.onnx.export(
            model,
            (),
            str(graph),
            kwargs=example,
            input_names=list(example),
            output_names=["logits"],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
