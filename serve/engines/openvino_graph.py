"""Exports a classifier as an OpenVINO graph, quantizes it to int8, and builds its inputs."""

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

from serve.batching.rows import Logits, Padding, Row, Tokenizer
from serve.engines.engine import ROW_HEAD, Head, Shape
from serve.engines.packing import FIRST, Arrays, Packing, capacity
from serve.engines.torch_engine import PooledModel, load_classifier, quiet_tracing

WIDTHS = 4
"""The widths of padded rows are multiples of this. Powers of two would cost a third of the speed.
"""
CALIBRATION_ROWS, CALIBRATION_BATCH = 128, 8
"""Rows that calibrate the value ranges of int8, and rows of one calibration batch."""
PLACES = "places"
"""Input of a masked language model's graph: the hidden tokens among all tokens of the batch."""
NAMES = ("input_ids", "attention_mask", "token_type_ids", PLACES)
"""Possible inputs of a graph for padded rows."""
PACKED = ("bert",)
"""Model types whose rows are packed; rows of other models are padded."""
SEGMENTS, VECTORS = "segment_ids", "inputs_embeds"
"""Inputs that only a graph for packed rows has."""
LAYER = "__module."
"""The names of a graph's nodes begin with this if a layer of the model computes them."""
WORDS = "openvino-words.npy"
"""File with the token embeddings, beside the graphs; inside, each graph would have its own copy."""
Vectors = npt.NDArray[np.float32]
Inputs = Callable[[Sequence[Row]], dict[str, Any]]


class PackedClassifier(torch.nn.Module):
    """A BERT classifier for the packed rows of `Packing`."""

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
        """Returns logits, [inputs, labels].

        Args:
            inputs_embeds: Token embeddings, [rows, width, hidden].
            token_type_ids: [rows, width].
            segment_ids: Number of the input that a token belongs to, 0 for padding, [rows, width].
            position_ids: Positions within each input, [rows, width].
            first: Index of each input's first token among all tokens, [inputs].
        """
        model = self._model
        tokens = packed_tokens(model.bert, inputs_embeds, token_type_ids, segment_ids, position_ids)
        logits: torch.Tensor = model.classifier(model.bert.pooler(tokens[first].unsqueeze(1)))
        return logits


class PackedVectors(PackedClassifier):
    """A BERT whose tokens are pooled, for the packed rows of `Packing`."""

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        position_ids: torch.Tensor,
        first: torch.Tensor,
    ) -> torch.Tensor:
        """Returns vectors, [inputs, n]; the arguments are those of `PackedClassifier`."""
        pooled, bert = self._model.pooling, self._model.model
        tokens = packed_tokens(bert, inputs_embeds, token_type_ids, segment_ids, position_ids)
        if pooled.mode == "cls":
            vectors = tokens[first]
        else:
            weights = own_tokens(segment_ids, first).to(tokens.dtype)
            vectors = weights @ tokens / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
        return torch.nn.functional.normalize(vectors, dim=-1) if pooled.is_normalized else vectors


class PackedTokenClassifier(torch.nn.Module):
    """A BERT classifier of tokens for the packed rows of `Packing`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model: Any = model

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        position_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Returns logits, [rows * width, labels]; arguments as those of `PackedClassifier`."""
        bert = self._model.bert
        tokens = packed_tokens(bert, inputs_embeds, token_type_ids, segment_ids, position_ids)
        logits: torch.Tensor = self._model.classifier(tokens)
        return logits


def own_tokens(segment_ids: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Returns which of all tokens belong to each input, [inputs, rows * width].

    They are those of its row and segment. The arguments are those of `PackedClassifier`.
    """
    row = torch.ones_like(segment_ids).cumsum(0).flatten()
    segments = segment_ids.flatten()
    is_own = (row == row[first][:, None]) & (segments == segments[first][:, None])
    return is_own & (segments > 0)


def packed_tokens(
    bert: Any,
    inputs_embeds: torch.Tensor,
    token_type_ids: torch.Tensor,
    segment_ids: torch.Tensor,
    position_ids: torch.Tensor,
) -> torch.Tensor:
    """Returns the last hidden states of packed rows, [rows * width, hidden].

    A token attends to the tokens of its own input only.
    """
    output = bert(
        inputs_embeds=inputs_embeds,
        token_type_ids=token_type_ids,
        position_ids=position_ids,
        attention_mask=segment_ids[:, None, :, None] == segment_ids[:, None, None, :],
    )
    tokens: torch.Tensor = output.last_hidden_state.flatten(0, 1)
    return tokens


def export(folder: Path, tokenizer: Tokenizer, graph: Path, head: Head = ROW_HEAD) -> None:
    """Writes a model as an OpenVINO graph with dynamic batch size and width."""
    disable_telemetry()
    import openvino

    model: Any = load_classifier(folder, head)
    if model.config.model_type in PACKED and not head.is_per_hidden:
        bert = model.model if isinstance(model, PooledModel) else model.bert
        words = bert.embeddings.word_embeddings.weight.detach().numpy()
        np.save(graph.with_name(WORDS), words)
        inputs = PackedInputs(Packing(tokenizer.pad_id), words)
        arrays = inputs([Row((1,) * 3, ()), Row((1,) * 5, ()), Row((1,) * 8, ())])
        if head.is_per_token:
            del arrays[FIRST]
        example = {name: torch.from_numpy(array) for name, array in arrays.items()}
        is_pooled = isinstance(model, PooledModel)
        kind = PackedVectors if is_pooled else PackedClassifier
        model = PackedTokenClassifier(model) if head.is_per_token else kind(model)
    else:
        example = example_inputs(tokenizer, head)
    ports = [
        (name, openvino.PartialShape(dynamic(tensor.shape)), openvino.Type(tensor.numpy().dtype))
        for name, tensor in example.items()
    ]
    with quiet_tracing():
        converted = openvino.convert_model(model, example_input=example, input=ports)
    openvino.save_model(converted, graph, compress_to_fp16=False)


def dynamic(shape: Sequence[int]) -> list[int]:
    """Returns a shape with dynamic rows and width (-1); further dimensions stay fixed."""
    return [-1, -1, *shape[2:]][: len(shape)]


def quantize(graph: Path, tokenizer: Tokenizer, rows: Sequence[Row], quantized: Path) -> None:
    """Writes an int8 copy of a graph, calibrated on rows of the evaluation sample.

    Only products inside the model's layers are quantized. The mean over a text's tokens is a
    product as well, whose sum over all tokens of a batch is wrong in int8.
    """
    disable_telemetry()
    import nncf
    import openvino

    read = openvino.Core().read_model(graph)
    names = names_of(read)
    products = [
        node.get_friendly_name() for node in read.get_ops() if node.get_type_name() == "MatMul"
    ]
    outside = [name for name in products if not name.startswith(LAYER)]
    inputs = padded_inputs(names, tokenizer)
    if SEGMENTS in names:
        inputs = PackedInputs(Packing(tokenizer.pad_id), words_of(graph))

    def batches() -> Iterator[dict[str, Any]]:
        used = rows[:CALIBRATION_ROWS]
        for first in range(0, len(used), CALIBRATION_BATCH):
            made = inputs(used[first : first + CALIBRATION_BATCH])
            yield {name: array for name, array in made.items() if name in names}

    calibration = list(batches())
    model = nncf.quantize(
        read,
        nncf.Dataset(calibration),
        model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=nncf.IgnoredScope(names=outside),
        subset_size=len(calibration),
    )
    openvino.save_model(model, quantized, compress_to_fp16=False)


def disable_telemetry() -> None:
    """Disables OpenVINO's usage reports, by making their module unimportable, and NNCF's log."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # blocks imports
    logging.getLogger("nncf").setLevel(logging.ERROR)


def input_names(tokenizer: Tokenizer) -> list[str]:
    """Returns the names of the model's inputs for padded rows, in the order of NAMES."""
    return [name for name in NAMES if name in tokenizer.input_names]


def example_inputs(tokenizer: Tokenizer, head: Head) -> dict[str, torch.Tensor]:
    """Returns inputs to trace a model with, by name."""
    names = NAMES[:2] if head.is_per_hidden else input_names(tokenizer)
    inputs = {name: torch.ones(2, 2 * WIDTHS, dtype=torch.int64) for name in names}
    return inputs | ({PLACES: torch.arange(3)} if head.is_per_hidden else {})


def names_of(graph: Any) -> set[str]:
    """Returns all names of a graph's inputs; an input may have several."""
    return {name for port in graph.inputs for name in port.get_names()}


def padded_inputs(names: set[str], tokenizer: Tokenizer) -> Inputs:
    """Returns the function that pads rows into the inputs that a graph has."""
    padding = Padding.of(tokenizer, WIDTHS)
    present = [name for name in NAMES if name in names]
    return functools.partial(padded_arrays, padding, names=present)


def words_of(graph: Path) -> Vectors:
    """Returns the token embeddings, [tokens, hidden], memory-mapped from the graph's folder."""
    return np.asarray(np.load(graph.with_name(WORDS), mmap_mode="r"))


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """Packs rows and looks up their token embeddings."""

    packing: Packing
    words: Vectors

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Returns a graph's inputs for a batch."""
        return self._embed(self.packing.apply(rows))

    def empty(self, shape: Shape) -> dict[str, Any]:
        """Returns inputs of a static-shape graph, without any row."""
        return self._embed(self.packing.empty(shape, capacity(shape)))

    def _embed(self, arrays: Arrays) -> dict[str, Any]:
        return {VECTORS: self.words.take(arrays.pop("input_ids"), axis=0), **arrays}


def padded_logits(logits: Logits, rows: Sequence[Row], padding: Padding) -> Logits:
    """Returns the logits of the rows' tokens, [tokens, labels], from [rows, width, labels]."""
    lengths = np.array([len(row) for row in rows])[:, None]
    width = logits.shape[1]
    places = np.arange(width)
    is_token = places >= width - lengths if padding.on_left else places < lengths
    found: Logits = logits[is_token]
    return found


def padded_arrays(padding: Padding, rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Pads rows and returns the arrays with these names, [rows, width] each; PLACES is [hidden]."""
    arrays = dict(zip(NAMES, padding.apply(rows), strict=False))
    if PLACES in names:
        arrays[PLACES] = padding.hidden(rows, arrays[NAMES[0]].shape[1])
    return {name: arrays[name] for name in names}
