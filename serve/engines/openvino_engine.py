"""The model under OpenVINO on a CPU: fp32 or bf16 as it is, int8 after a static calibration."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobs.spec.serve import EngineName
from serve.batching.rows import Logits, PendingBatch, Row, Tokenizer
from serve.engines.engine import Shape
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
"""Of packed rows, so that OpenVINO has few shapes to prepare its graph for; the second on CPUs with
matrix units, where it is a fifth faster. Measured in benchmarks/HISTORY.md."""
LONGER, SHAPE_TRIALS = 4, 5
"""Widths of two rows to one another, and how often each is run to time a change of shape."""
MOST_SPARE = 64.0
"""Tokens that are wasted at most for the sake of a shape."""
OWN_BYTES = 768 * 2**20
"""Most memory for graphs that are made for one shape each."""
OWN_GRAPH_BYTES = 24 * 2**20
OWN_WEIGHTS: dict[EngineName, float] = {
    "openvino-int8": 1.4,
    "openvino-bf16": 1.0,
    "openvino-fp32": 1.0,
}
"""What such a graph takes of it: so much, and its weights' file so many times. Measured with MiniLM
and bert-base."""
CPU_FLAGS, MATRIX_UNITS = Path("/proc/cpuinfo"), "amx_tile"
HINTS: dict[EngineName, str] = {
    "openvino-int8": "f32",
    "openvino-bf16": "bf16",
    "openvino-fp32": "f32",
}
"""What layers that are not int8 are computed in."""


class OpenVinoEngine:
    """A compiled graph for any shape, and some for one shape each, with their own threads."""

    def __init__(self, graph: Path, tokenizer: Tokenizer, name: EngineName, threads: int) -> None:
        self.name, self._graph, self._threads = name, graph, threads
        self._request = self._compiled(_read(graph))
        self._own: dict[Shape, StaticShapeGraph] = {}
        names = names_of(self._request.get_compiled_model())
        self.is_packed = SEGMENTS in names
        self.packing = packing_of(tokenizer)
        self._inputs: Inputs = padded_inputs(names, tokenizer)
        if self.is_packed:
            self._inputs = self._packed = PackedInputs(self.packing, words_of(graph))
            self.packing.spare = self._shape_tokens(self.packing.multiple)

    def _compiled(self, model: Any) -> Any:
        """What runs a graph."""
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": HINTS[self.name],
        }
        return openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def prepare(self, lengths: Sequence[int], batch_tokens: int) -> None:
        """Make graphs for the shapes that batches of inputs with such lengths usually have.

        They have nothing to prepare when a batch is of another shape than the last, and take less
        time. Fewer for a larger model, whose weights each of them has a copy of.
        """
        if not self.is_packed:
            return
        usual = usual_shapes(lengths, self.packing.multiple, batch_tokens)
        weights = self._graph.with_suffix(".bin").stat().st_size
        each = OWN_GRAPH_BYTES + OWN_WEIGHTS[self.name] * weights
        model = _read(self._graph)
        for shape in usual[: int(OWN_BYTES / each)]:
            inputs = self._packed.empty(shape)
            own = model.clone()  # reads the weights' file no second time
            own.reshape({name: list(array.shape) for name, array in inputs.items()})
            self._own[shape] = StaticShapeGraph(self._compiled(own), inputs)
        self.packing.made = tuple(sorted(self._own, key=cost))

    def _shape_tokens(self, width: int) -> float:
        """How many tokens cost what it does to prepare the graph for another shape."""
        short, long = (Row((0,) * size, ()) for size in (width, LONGER * width))

        def seconds(row: Row) -> float:
            begin = time.perf_counter()
            self.run([row])
            return time.perf_counter() - begin

        # each twice by turns: the first after another shape, the second after the same
        spent = [seconds(row) for row in (short, short, long, long) * SHAPE_TRIALS]
        first_short, short_s, first_long, long_s = (min(spent[turn::4]) for turn in range(4))
        prepare_s = (first_short - short_s + first_long - long_s) / 2
        token_s = (long_s - short_s) / ((LONGER - 1) * width)
        return min(MOST_SPARE, max(0.0, prepare_s / token_s)) if token_s > 0 else 0.0

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Lay a batch out; what is returned computes its logits, [rows, labels]."""
        inputs = self._inputs(rows)
        shape = inputs[SEGMENTS].shape if self.is_packed else (0, 0)
        if self.packing.has_graph(shape, len(rows)):
            own = self._own[shape]
            return lambda: own.run(inputs)[: len(rows)].copy()

        def land() -> Logits:
            self._request.infer(inputs, share_inputs=True)
            return np.array(self._request.get_output_tensor(0).data, dtype=np.float32)

        return land


class StaticShapeGraph:
    """A graph that is made for one shape, which always reads and writes the same memory."""

    def __init__(self, request: Any, inputs: Mapping[str, Any]) -> None:
        """Runs it once, as the first time takes longer."""
        self._request = request
        self._inputs = {name: request.get_tensor(name).data for name in inputs}
        self.run(inputs)

    def run(self, inputs: Mapping[str, Any]) -> Logits:
        """Logits as [room, labels], until the next run."""
        for name, place in self._inputs.items():
            place[...] = inputs[name]
        self._request.infer(share_outputs=True)
        found: Logits = self._request.get_output_tensor(0).data
        return found


def _read(graph: Path) -> Any:
    import openvino

    return openvino.Core().read_model(graph)


def packing_of(tokenizer: Tokenizer) -> Packing:
    """How rows are packed on this CPU."""
    return Packing(tokenizer.pad_id, TILED_WIDTHS if has_matrix_units() else PACKED_WIDTHS)


def has_matrix_units() -> bool:
    """Whether this CPU multiplies matrices by tiles (Intel's AMX), as far as Linux tells."""
    return CPU_FLAGS.exists() and MATRIX_UNITS in CPU_FLAGS.read_text(encoding="utf-8").split()
