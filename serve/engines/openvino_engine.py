"""Engine with OpenVINO on a CPU, in fp32, in bf16, or in int8 with static calibration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobs.spec.serve import EngineName
from serve.batching.policy import Limits
from serve.batching.rows import Logits, PendingBatch, Row, Tokenizer
from serve.engines.engine import Shape, run_s, usual_widths
from serve.engines.openvino_graph import (
    SEGMENTS,
    Inputs,
    PackedInputs,
    names_of,
    padded_inputs,
    words_of,
)
from serve.engines.packing import Packing, cost, usual_shapes

PACKED_WIDTHS, TILED_WIDTHS = 16, 32
"""The widths of packed rows are multiples of this, so that OpenVINO prepares its graph for few
shapes. The second value is for CPUs with matrix units, where it is a fifth faster. Measured in
benchmarks/HISTORY.md."""
LONGER, SHAPE_TRIALS = 4, 5
"""For timing a change of shape: ratio of the widths of two rows, and runs of each."""
MOST_SPARE = 64.0
"""Most tokens of padding that are accepted to keep the last shape."""
STATIC_BYTES = 768 * 2**20
"""Most memory for static-shape graphs."""
STATIC_GRAPH_BYTES = 24 * 2**20
STATIC_WEIGHTS: dict[EngineName, float] = {
    "openvino-int8": 1.4,
    "openvino-bf16": 1.0,
    "openvino-fp32": 1.0,
}
"""Memory of one static-shape graph: STATIC_GRAPH_BYTES, plus the size of the weights' file times
this factor. Measured with MiniLM and bert-base."""
CPU_FLAGS, MATRIX_UNITS = Path("/proc/cpuinfo"), "amx_tile"
HINTS: dict[EngineName, str] = {
    "openvino-int8": "f32",
    "openvino-bf16": "bf16",
    "openvino-fp32": "f32",
}
"""OpenVINO's precision for layers that are not int8."""


class OpenVinoEngine:
    """Runs batches with one dynamic-shape graph and several static-shape graphs."""

    ahead = 0

    def __init__(self, graph: Path, tokenizer: Tokenizer, name: EngineName, threads: int) -> None:
        self.name, self._graph, self._threads = name, graph, threads
        self._request = self._compiled(_read(graph))
        self._static: dict[Shape, StaticShapeGraph] = {}
        names = names_of(self._request.get_compiled_model())
        self.is_packed = SEGMENTS in names
        self.packing = packing_of(tokenizer)
        self._inputs: Inputs = padded_inputs(names, tokenizer)
        if self.is_packed:
            self._inputs = self._packed = PackedInputs(self.packing, words_of(graph))
            self.packing.spare = self._shape_tokens(self.packing.multiple)

    def _compiled(self, model: Any) -> Any:
        """Compiles a graph and returns its infer request."""
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": HINTS[self.name],
        }
        return openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Compiles static-shape graphs for the usual shapes of batches, if the engine packs rows.

        They are faster than the dynamic-shape graph and need no preparation after a change of
        shape. A larger model gets fewer of them, because each one has a copy of the weights.

        Returns shapes of the usual widths, which are to be run once.
        """
        if self.is_packed:
            self._compile_static(usual_shapes(lengths, self.packing.multiple, limits.batch_tokens))
        return usual_widths(longest)

    def _compile_static(self, usual: Sequence[Shape]) -> None:
        weights = self._graph.with_suffix(".bin").stat().st_size
        each = STATIC_GRAPH_BYTES + STATIC_WEIGHTS[self.name] * weights
        model = _read(self._graph)
        for shape in usual[: int(STATIC_BYTES / each)]:
            inputs = self._packed.empty(shape)
            static = model.clone()  # shares the weights instead of reading their file again
            static.reshape({name: list(array.shape) for name, array in inputs.items()})
            self._static[shape] = StaticShapeGraph(self._compiled(static), inputs)
        self.packing.static_shapes = tuple(sorted(self._static, key=cost))

    def _shape_tokens(self, width: int) -> float:
        """Returns the number of tokens that cost as much as preparing the graph for a new shape."""
        short, long = (Row((0,) * size, ()) for size in (width, LONGER * width))
        # each twice in turn: the first run follows another shape, the second one the same shape
        spent = [run_s(self, [row]) for row in (short, short, long, long) * SHAPE_TRIALS]
        first_short, short_s, first_long, long_s = (min(spent[turn::4]) for turn in range(4))
        prepare_s = (first_short - short_s + first_long - long_s) / 2
        token_s = (long_s - short_s) / ((LONGER - 1) * width)
        return min(MOST_SPARE, max(0.0, prepare_s / token_s)) if token_s > 0 else 0.0

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns logits, [rows, labels]."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Packs or pads a batch; the returned function computes its logits, [rows, labels]."""
        inputs = self._inputs(rows)
        shape = inputs[SEGMENTS].shape if self.is_packed else (0, 0)
        if self.packing.has_graph(shape, len(rows)):
            graph = self._static[shape]
            return lambda: graph.run(inputs)[: len(rows)].copy()

        def compute() -> Logits:
            self._request.infer(inputs, share_inputs=True)
            return np.array(self._request.get_output_tensor(0).data, dtype=np.float32)

        return compute


class StaticShapeGraph:
    """A graph compiled for one shape, which always reads and writes the same memory."""

    def __init__(self, request: Any, inputs: Mapping[str, Any]) -> None:
        """Runs the graph once, because the first run is slower."""
        self._request = request
        self._inputs = {name: request.get_tensor(name).data for name in inputs}
        self.run(inputs)

    def run(self, inputs: Mapping[str, Any]) -> Logits:
        """Returns logits, [capacity, labels]; the next run overwrites them."""
        for name, buffer in self._inputs.items():
            buffer[...] = inputs[name]
        self._request.infer(share_outputs=True)
        logits: Logits = self._request.get_output_tensor(0).data
        return logits


def _read(graph: Path) -> Any:
    import openvino

    return openvino.Core().read_model(graph)


def packing_of(tokenizer: Tokenizer) -> Packing:
    """Returns the packing that suits this CPU."""
    return Packing(tokenizer.pad_id, TILED_WIDTHS if has_matrix_units() else PACKED_WIDTHS)


def has_matrix_units() -> bool:
    """Returns True if Linux reports matrix units (Intel AMX) for this CPU."""
    return CPU_FLAGS.exists() and MATRIX_UNITS in CPU_FLAGS.read_text(encoding="utf-8").split()
