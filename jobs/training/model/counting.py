"""Determines the size of a base model from its configuration, or by building it without memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.errors import ModelError
from jobs.spec import task_registry
from jobs.spec.task import Task
from jobs.training.model import location as model_location
from jobs.training.model.library import as_model_error
from jobs.training.model.shape import KNOWN_SHAPES, ModelShape

HUB_TIMEOUT_S = 3.0
"""Longest wait of planning for a model's configuration from the hub."""
EXACT_TYPES = (
    *("bert", "distilbert", "roberta", "xlm-roberta", "mpnet"),
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2"),
)
"""Model types for which the formula is exact to 0.1 %; other models are built to be counted."""
LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
WIDE = ("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "encoder_ffn_dim", "d_inner")
"""Names of these dimensions in configurations."""


def shape_of(base: str, task: Task | None = None) -> ModelShape | None:
    """Returns the dimensions of a base model for a task.

    None if its configuration cannot be loaded from the hub or lacks a dimension.

    Raises:
        ModelError: if a local folder or a package does not exist, or its config.json is invalid.
    """
    task = task or task_registry.find(task_registry.DEFAULT_TASK)
    location = model_location.locate(base, has_weights=False)
    if isinstance(location, Path):
        return _from_config(model_location.read_config(location), task)
    name = location.rsplit("/", 1)[-1]
    known = KNOWN_SHAPES.get(name)
    if known:
        return replace(known, scores_vocabulary=task.scores_vocabulary)
    return _from_hub(location, task)


def _from_config(config: dict[str, Any], task: Task) -> ModelShape | None:
    def read(*names: str) -> int:
        return int(next(config[name] for name in names if _is_size(config.get(name))))

    def size(name: str, otherwise: int) -> int:
        return int(config[name]) if _is_size(config.get(name)) else otherwise

    kind = config.get("model_type")
    try:
        hidden = read("hidden_size", "dim", "n_embd", "d_model")
        is_gated = config.get("hidden_act") == "silu"
        heads = size("num_attention_heads", 1)
        layers, decoder_layers = read(*LAYERS), 0
        if config.get("is_encoder_decoder") and kind not in EXACT_TYPES:
            decoder_layers = read(*DECODER_LAYERS, *LAYERS)
        return ModelShape(
            layers=layers + decoder_layers,
            decoder_layers=decoder_layers,
            hidden=hidden,
            intermediate=next((config[n] for n in WIDE if _is_size(config.get(n))), 4 * hidden),
            vocabulary=read("vocab_size"),
            positions=0 if is_gated else size("max_position_embeddings", 0),
            is_gated=is_gated,
            key_value_share=size("num_key_value_heads", heads) / heads,
            has_own_head=task.scores_vocabulary and not config.get("tie_word_embeddings", False),
            scores_vocabulary=task.scores_vocabulary,
            counted=None if kind in EXACT_TYPES else _count(config, task),
        )
    except StopIteration:
        return None


def _is_size(value: object) -> bool:
    """Returns whether a value of an untrusted configuration is a dimension."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _count(config: dict[str, Any], task: Task) -> int:
    """Counts the weights of the model, built on the meta device, which needs no memory.

    Raises:
        StopIteration: if transformers cannot build the configuration.
    """
    import torch  # takes seconds, and models with a formula do not need it
    import transformers

    auto = getattr(transformers, task.auto_class)
    values = {name: value for name, value in config.items() if name != "model_type"}
    try:
        with as_model_error("the model cannot be counted"), torch.device("meta"):
            made = transformers.AutoConfig.for_model(config["model_type"], **values)
            model = auto.from_config(made, trust_remote_code=False)
    except ModelError:
        raise StopIteration from None
    return sum(parameter.numel() for parameter in model.parameters())


def _from_hub(name: str, task: Task) -> ModelShape | None:
    import huggingface_hub  # takes half a second, and local models do not need it

    try:
        path = huggingface_hub.try_to_load_from_cache(name, "config.json")
        if not isinstance(path, str):
            # fails at once if the hub cannot be reached; a download would try for half a minute
            huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
            path = huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=HUB_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - the hub raises many types for offline, private or missing
        return None
    try:
        return _from_config(model_location.read_config(Path(path).parent), task)
    except ModelError:
        return None
