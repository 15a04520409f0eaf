"""Exports a language model as an OpenVINO graph with a cache, as OpenVINO GenAI reads it."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from serve.engines.torch_engine import quiet_tracing

GRAPH = "openvino_model.xml"
TOKENS, MASK, POSITIONS, ROWS = "input_ids", "attention_mask", "position_ids", "beam_idx"
"""Inputs of the graph, beside the cache: OpenVINO GenAI knows them by these names."""
TRACED_ROWS, TRACED_TOKENS, TRACED_PAST = 2, 4, 3


class Step(torch.nn.Module):
    """One step of a causal model, whose cache comes in and goes out as tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model: Any = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        beam_idx: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, ...]:
        """Returns logits, [rows, width, vocabulary], and keys and values of each layer.

        Args:
            input_ids: [rows, width].
            attention_mask: 1 for each token of the cache and the input, [rows, past + width].
            position_ids: [rows, width].
            beam_idx: Row of the cache that each row continues, [rows].
            past: Keys and values of each layer, [rows, heads, past, size].
        """
        cache = transformers.DynamicCache(config=self._model.config)
        for layer, (keys, values) in zip(cache.layers, past, strict=True):
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            layer.keys = keys.index_select(0, beam_idx)
            layer.values = values.index_select(0, beam_idx)
        made = self._model(
            input_ids=input_ids,
            attention_mask=_causal(attention_mask, past[0][0].shape[2], input_ids.shape[1]),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        kept = [each for layer in cache.layers for each in (layer.keys, layer.values)]
        return (made.logits, *kept)


def reason_against(config: Any) -> str:
    """Returns why models of a configuration of transformers are not exported; empty if they are.

    The cache must be keys and values of all tokens before: no windows, chunks or states.
    """
    own = config.get_text_config()
    with torch.device("meta"):
        layers = transformers.DynamicCache(config=own).layers
    kinds = {type(layer).__name__ for layer in layers} - {"DynamicLayer"}
    if kinds or not layers:
        return f"its cache ({', '.join(sorted(kinds)) or 'none'}) is not of all tokens before"
    if getattr(own, "attention_chunk_size", None):
        return "its attention is in chunks"
    if getattr(own, "num_key_value_heads", own.num_attention_heads) is None:
        return "its configuration does not tell its heads"
    return ""


def export(folder: Path, target: Path) -> None:
    """Writes the graph of a causal model in fp32 into a folder.

    Raises an error of torch or OpenVINO if the model cannot be traced.
    """
    import openvino

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, use_safetensors=True, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    with torch.no_grad(), quiet_tracing():
        example = _example(model)
        graph = openvino.convert_model(Step(model), example_input=example)
    _name(graph, [each.shape for layer in example["past"] for each in layer])
    target.mkdir(parents=True, exist_ok=True)
    openvino.save_model(graph, target / GRAPH, compress_to_fp16=False)


def _example(model: Any) -> dict[str, Any]:
    """Returns inputs with which a model is traced."""
    rows, width, past = TRACED_ROWS, TRACED_TOKENS, TRACED_PAST
    found = model(input_ids=torch.zeros(rows, past, dtype=torch.int64), use_cache=True)
    layers = copy.deepcopy(found.past_key_values.layers)
    return {
        TOKENS: torch.ones(rows, width, dtype=torch.int64),
        MASK: torch.ones(rows, past + width, dtype=torch.int64),
        POSITIONS: torch.arange(past, past + width)[None].repeat(rows, 1),
        ROWS: torch.arange(rows, dtype=torch.int32),
        "past": [(layer.keys, layer.values) for layer in layers],
    }


def _causal(mask: torch.Tensor, past: int, width: int) -> torch.Tensor:
    """Returns what is added to the scores of attention, [rows, 1, width, past + width]."""
    keys = torch.arange(past + width)[None, :]
    queries = torch.arange(past, past + width)[:, None]
    seen = (keys <= queries)[None, None] & mask[:, None, None, :].bool()
    low = torch.finfo(torch.float32).min
    return torch.zeros(seen.shape, dtype=torch.float32).masked_fill(~seen, low)


def _name(graph: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Names the inputs and outputs of a traced graph, and keeps its cache inside of it.

    `shapes` are those of the cache's inputs, [rows, heads, past, size].
    """
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    kept = dict[str, str]()
    for place, value in enumerate(graph.inputs):
        node = value.get_node()
        if place < len(FIXED):
            name, shape, kind = FIXED[place]
        else:
            name, kind = _cache_name("past_key_values", place - len(FIXED)), "f32"
            _, heads, _, size = shapes[place - len(FIXED)]
            shape = [-1, heads, -1, size]
        node.set_friendly_name(name)
        value.get_tensor().set_names({name})
        node.set_partial_shape(openvino.PartialShape(shape))
        node.set_element_type(getattr(openvino.Type, kind))
    for place, value in enumerate(graph.outputs):
        name = _cache_name("present", place - 1) if place else "logits"
        value.get_tensor().set_names({name})
        if place:
            kept[_cache_name("past_key_values", place - 1)] = name
    graph.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(graph, kept)
    _begin_empty(graph)


FIXED: tuple[tuple[str, list[int], str], ...] = (
    (TOKENS, [-1, -1], "i64"),
    (MASK, [-1, -1], "i64"),
    (POSITIONS, [-1, -1], "i64"),
    (ROWS, [-1], "i32"),
)
"""Name, shape and type of each input but the cache."""


def _cache_name(kind: str, place: int) -> str:
    return f"{kind}.{place // 2}.{'value' if place % 2 else 'key'}"


def _begin_empty(graph: Any) -> None:
    """Lets a graph's cache begin with no token of as many rows as the input has."""
    import openvino.opset13 as ops

    shape = ops.shape_of(graph.input(TOKENS), output_type="i64")
    rows = ops.gather(shape, ops.constant([0]), ops.constant(0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            sizes = [
                ops.constant(np.array([each.get_length() if each.is_static else 0], np.int64))
                for each in node.get_output_partial_shape(0)
            ]
            zero = ops.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([ops.broadcast(zero, ops.concat([rows, *sizes[1:]], axis=0))])
    graph.validate_nodes_and_infer_types()
