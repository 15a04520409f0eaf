"""The model under OpenVINO on a CPU: fp32 or bf16 as it is, int8 after a static calibration."""

import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs.spec.serve import EngineName
from serve.engines.engine import Logits
from serve.engines.packing import Packing
from serve.engines.rows import Padding, Row, Tokenizer
from serve.engines.torch_engine import load_classifier, quiet_tracing

WIDTHS = 4
"""Widths of padded rows are multiples of it. Filled up to powers of two they cost a third of the
speed."""
PACKED_WIDTHS, TILED_WIDTHS = 16, 32
"""Of packed rows, so that OpenVINO has few shapes to prepare its graph for; the second on CPUs with
matrix units, where it is a fifth faster. Measured in benchmarks/LOG.md."""
LONGER, SHAPE_TRIALS = 4, 5
"""Widths of two rows to one another, and how often each is run to time a change of shape."""
MOST_SPARE = 64.0
"""Tokens that are wasted at most for the sake of a shape."""
CPU_FLAGS, MATRIX_UNITS = Path("/proc/cpuinfo"), "amx_tile"
CALIBRATION_ROWS, CALIBRATION_BATCH = 128, 8
"""Rows from which the ranges of int8 are taken."""
HINTS: dict[EngineName, str] = {
    "openvino-int8": "f32",
    "openvino-bf16": "bf16",
    "openvino-fp32": "f32",
}
"""What layers that are not int8 are computed in."""
NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of graphs that take padded rows, as far as the model has them."""
PACKED = ("bert",)
"""Types of models whose inputs share rows; those of others are padded."""
SEGMENTS = "segment_ids"
"""An input of graphs that take packed rows, and of no other."""
Inputs = Callable[[Sequence[Row]], dict[str, Any]]


class OpenVinoEngine:
    """A compiled graph with its own threads."""

    def __init__(self, graph: Path, tokenizer: Tokenizer, name: EngineName, threads: int) -> None:
        import openvino

        self.name = name
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": HINTS[name],
        }
        self._compiled = openvino.Core().compile_model(graph, "CPU", settings)
        self._request = self._compiled.create_infer_request()
        self.is_packed = SEGMENTS in names_of(self._compiled)
        self.packing = packing_of(tokenizer) if self.is_packed else None
        if self.packing:
            self._inputs: Inputs = self.packing.apply
            self.packing.spare = self._shape_tokens(self.packing.multiple)
        else:
            self._inputs = padded_inputs(self._compiled, tokenizer)

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
        self._request.infer(self._inputs(rows), share_inputs=True)
        logits = self._request.get_output_tensor(0).data
        return np.array(logits, dtype=np.float32)


class PackedClassifier(torch.nn.Module):
    """A BERT classifier of rows that hold several inputs, as `Packing` lays them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model: Any = model

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        position_ids: torch.Tensor,
        first: torch.Tensor,
    ) -> torch.Tensor:
        """Logits as [inputs, labels]."""
        model = self._model
        found = model.bert(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            attention_mask=segment_ids[:, None, :, None] == segment_ids[:, None, None, :],
        )
        tokens = found.last_hidden_state.flatten(0, 1)
        logits: torch.Tensor = model.classifier(model.bert.pooler(tokens[first].unsqueeze(1)))
        return logits


def export(folder: Path, tokenizer: Tokenizer, graph: Path) -> None:
    """Write a model folder as an OpenVINO graph with free batch and width."""
    silence()
    import openvino

    model: Any = load_classifier(folder)
    if model.config.model_type in PACKED:
        model = PackedClassifier(model)
        rows = [Row((1,) * 3, ()), Row((1,) * 5, ()), Row((1,) * 8, ())]
        arrays = Packing(tokenizer.pad_id).apply(rows)
        example = {name: torch.from_numpy(array) for name, array in arrays.items()}
    else:
        example = {
            name: torch.ones(2, WIDTHS, dtype=torch.int64) for name in input_names(tokenizer)
        }
    ports = [
        (name, openvino.PartialShape([-1] * tensor.ndim), openvino.Type.i64)
        for name, tensor in example.items()
    ]
    with quiet_tracing():
        converted = openvino.convert_model(model, example_input=example, input=ports)
    openvino.save_model(converted, graph, compress_to_fp16=False)


def quantize(graph: Path, tokenizer: Tokenizer, rows: Sequence[Row], quantized: Path) -> None:
    """Write an int8 copy of a graph, its ranges calibrated on rows."""
    silence()
    import nncf
    import openvino

    read = openvino.Core().read_model(graph)
    inputs = inputs_of(read, tokenizer)

    def batches() -> Iterator[dict[str, Any]]:
        used = rows[:CALIBRATION_ROWS]
        for first in range(0, len(used), CALIBRATION_BATCH):
            yield inputs(used[first : first + CALIBRATION_BATCH])

    found = list(batches())
    model = nncf.quantize(
        read,
        nncf.Dataset(found),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(found),
    )
    openvino.save_model(model, quantized, compress_to_fp16=False)


def silence() -> None:
    """Keep the libraries from reporting their use to anybody: they go on without the reporter."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None forbids it
    logging.getLogger("nncf").setLevel(logging.ERROR)


def input_names(tokenizer: Tokenizer) -> list[str]:
    """What the model takes, in this order."""
    return [name for name in NAMES if name in tokenizer.input_names]


def names_of(graph: Any) -> set[str]:
    """All names of a graph's inputs; some have several."""
    return {name for port in graph.inputs for name in port.get_names()}


def inputs_of(graph: Any, tokenizer: Tokenizer) -> Inputs:
    """What makes a graph's inputs of rows."""
    if SEGMENTS in names_of(graph):
        return packing_of(tokenizer).apply
    return padded_inputs(graph, tokenizer)


def packing_of(tokenizer: Tokenizer) -> Packing:
    """How rows are packed on this CPU."""
    return Packing(tokenizer.pad_id, TILED_WIDTHS if has_matrix_units() else PACKED_WIDTHS)


def padded_inputs(graph: Any, tokenizer: Tokenizer) -> Inputs:
    """What makes inputs of padded rows, as far as a graph has them."""
    names = names_of(graph)
    padding = Padding(tokenizer.pad_id, WIDTHS)
    return functools.partial(named, padding, names=[name for name in NAMES if name in names])


def has_matrix_units() -> bool:
    """Whether this CPU multiplies matrices by tiles (Intel's AMX), as far as Linux tells."""
    return CPU_FLAGS.exists() and MATRIX_UNITS in CPU_FLAGS.read_text(encoding="utf-8").split()


def named(padding: Padding, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Padded arrays by the names of a graph's inputs."""
    ids, mask, types = padding.apply(rows)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: arrays[name] for name in names}
