"""The model under OpenVINO on a CPU: fp32 or bf16 as it is, int8 after a static calibration."""

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs.spec.serve import EngineName
from serve.engines.engine import Logits
from serve.engines.rows import Padding, Row, Tokenizer
from serve.engines.torch_engine import load_classifier, quiet_tracing

WIDTHS = 4
"""Widths are multiples of it. Rows filled up to powers of two cost a third of the speed."""
CALIBRATION_ROWS, CALIBRATION_BATCH = 128, 8
"""Rows from which the ranges of int8 are taken."""
HINTS: dict[EngineName, str] = {
    "openvino-int8": "f32",
    "openvino-bf16": "bf16",
    "openvino-fp32": "f32",
}
"""What layers that are not int8 are computed in."""


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
        self._names = [port.get_any_name() for port in self._compiled.inputs]
        self._padding = Padding(tokenizer.pad_id, WIDTHS)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]."""
        inputs = named(self._padding, rows, self._names)
        self._request.infer(inputs, share_inputs=True)
        logits = self._request.get_output_tensor(0).data
        return np.array(logits, dtype=np.float32)


def export(folder: Path, tokenizer: Tokenizer, graph: Path) -> None:
    """Write a model folder as an OpenVINO graph with free batch and width."""
    silence()
    import openvino

    model = load_classifier(folder)
    names = input_names(tokenizer)
    example = {name: torch.ones(2, WIDTHS, dtype=torch.int64) for name in names}
    shapes = [(name, openvino.PartialShape([-1, -1]), openvino.Type.i64) for name in names]
    with quiet_tracing():
        converted = openvino.convert_model(model, example_input=example, input=shapes)
    openvino.save_model(converted, graph, compress_to_fp16=False)


def quantize(graph: Path, tokenizer: Tokenizer, rows: Sequence[Row], quantized: Path) -> None:
    """Write an int8 copy of a graph, its ranges calibrated on rows."""
    silence()
    import nncf
    import openvino

    padding, names = Padding(tokenizer.pad_id, WIDTHS), input_names(tokenizer)

    def batches() -> Iterator[dict[str, Any]]:
        used = rows[:CALIBRATION_ROWS]
        for first in range(0, len(used), CALIBRATION_BATCH):
            yield named(padding, used[first : first + CALIBRATION_BATCH], names)

    found = list(batches())
    model = nncf.quantize(
        openvino.Core().read_model(graph),
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
    known = ("input_ids", "attention_mask", "token_type_ids")
    return [name for name in known if name in tokenizer.input_names]


def named(padding: Padding, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Padded arrays by the names of a graph's inputs."""
    ids, mask, types = padding.apply(rows)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: arrays[name] for name in names}
