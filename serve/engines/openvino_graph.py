"""A classifier as a graph for OpenVINO: exported, calibrated for int8, and what it takes."""

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from serve.batching.rows import Padding, Row, Tokenizer
from serve.engines.engine import Shape
from serve.engines.packing import Arrays, Packing, room
from serve.engines.torch_engine import load_classifier, quiet_tracing

WIDTHS = 4
"""Widths of padded rows are multiples of it. Filled up to powers of two they cost a third of the
speed."""
CALIBRATION_ROWS, CALIBRATION_BATCH = 128, 8
"""Rows from which the ranges of int8 are taken."""
NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of graphs that take padded rows, as far as the model has them."""
PACKED = ("bert",)
"""Types of models whose inputs share rows; those of others are padded."""
SEGMENTS, VECTORS = "segment_ids", "inputs_embeds"
"""Inputs of graphs that take packed rows, and of no other."""
WORDS = "openvino-words.npy"
"""The vectors of all tokens, beside such graphs: each of several graphs would have a copy inside.
"""
Vectors = npt.NDArray[np.float32]
Inputs = Callable[[Sequence[Row]], dict[str, Any]]


class PackedClassifier(torch.nn.Module):
    """A BERT classifier of rows that hold several inputs, as `Packing` lays them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model: Any = model

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        position_ids: torch.Tensor,
        first: torch.Tensor,
    ) -> torch.Tensor:
        """Logits as [inputs, labels]."""
        model = self._model
        found = model.bert(
            inputs_embeds=inputs_embeds,
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
        words = model.bert.embeddings.word_embeddings.weight.detach().numpy()
        np.save(graph.with_name(WORDS), words)
        inputs = PackedInputs(Packing(tokenizer.pad_id), words)
        arrays = inputs([Row((1,) * 3, ()), Row((1,) * 5, ()), Row((1,) * 8, ())])
        example = {name: torch.from_numpy(array) for name, array in arrays.items()}
        model = PackedClassifier(model)
    else:
        example = {
            name: torch.ones(2, WIDTHS, dtype=torch.int64) for name in input_names(tokenizer)
        }
    ports = [
        (name, openvino.PartialShape(free(tensor.shape)), openvino.Type(tensor.numpy().dtype))
        for name, tensor in example.items()
    ]
    with quiet_tracing():
        converted = openvino.convert_model(model, example_input=example, input=ports)
    openvino.save_model(converted, graph, compress_to_fp16=False)


def free(shape: Sequence[int]) -> list[int]:
    """A shape with free batch and width; how long the vectors of tokens are stays."""
    return [-1, -1, *shape[2:]][: len(shape)]


def quantize(graph: Path, tokenizer: Tokenizer, rows: Sequence[Row], quantized: Path) -> None:
    """Write an int8 copy of a graph, its ranges calibrated on rows."""
    silence()
    import nncf
    import openvino

    read = openvino.Core().read_model(graph)
    names = names_of(read)
    inputs = padded_inputs(names, tokenizer)
    if SEGMENTS in names:
        inputs = PackedInputs(Packing(tokenizer.pad_id), words_of(graph))

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


def padded_inputs(names: set[str], tokenizer: Tokenizer) -> Inputs:
    """What makes inputs of padded rows, as far as a graph has them."""
    padding = Padding.of(tokenizer, WIDTHS)
    return functools.partial(named, padding, names=[name for name in NAMES if name in names])


def words_of(graph: Path) -> Vectors:
    """Vectors of all tokens, as [tokens, width]; read where they are used, and shared."""
    return np.asarray(np.load(graph.with_name(WORDS), mmap_mode="r"))


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """Makes inputs of packed rows, with the vectors of their tokens looked up."""

    packing: Packing
    words: Vectors

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Of a batch."""
        return self._looked_up(self.packing.apply(rows))

    def empty(self, shape: Shape) -> dict[str, Any]:
        """Of a graph that is made for a shape."""
        return self._looked_up(self.packing.empty(shape, room(shape)))

    def _looked_up(self, arrays: Arrays) -> dict[str, Any]:
        return {VECTORS: self.words.take(arrays.pop("input_ids"), axis=0), **arrays}


def named(padding: Padding, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Padded arrays by the names of a graph's inputs."""
    ids, mask, types = padding.apply(rows)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: arrays[name] for name in names}
