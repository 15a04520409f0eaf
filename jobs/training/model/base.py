"""Loads the base model and its tokenizer for a task, and sets them to the same padding token."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.errors import ModelError
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.spec.train import Precision
from jobs.training.model import heads, location, low_precision, quantized
from jobs.training.model.library import as_model_error
from jobs.training.task import training_of

LAYER_DROP = (
    "the base leaves out whole layers at random (layerdrop); training does not, because workers"
    " would exchange gradients of different layers"
)
NEWEST = "main"
"""The hub's name for the newest commit of a repository."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A base model for its task."""

    model: Any
    fresh: tuple[str, ...] = ()
    """Modules that the base lacks; their weights are initialised from torch's random state."""
    remarks: tuple[str, ...] = ()
    """Whether the head of a base that is a classifier was kept, and what training switches off."""
    weights: str = ""
    """Digest of the base's weights; empty for those in another format than safetensors."""
    revision: str = ""
    """Commit of a base on the hub with safetensors; empty for others."""


def load_tokenizer(base: str, folder: Path | None = None) -> Any:
    """Loads the fast tokenizer of a base model and sets its padding token.

    `folder`: the folder of the base's files, if it is known.

    Raises:
        ModelError: if there is no tokenizer, or only one in Python.
    """
    transformers.utils.logging.set_verbosity_error()
    place = folder or location.locate(base)
    with as_model_error(f"the tokenizer of {base} cannot be loaded"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer of {base} is written in Python, which endpoints cannot run; choose a"
            " base with a tokenizer.json"
        )
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ModelError(
            f"{base} holds no tokenizer: save the tokenizer that the model was trained with beside"
            " it, as tokenizer.json"
        )
    if tokenizer.pad_token is None:
        known = tokenizer.eos_token or tokenizer.unk_token or tokenizer.bos_token
        settle(tokenizer, pad_token=known or tokenizer.convert_ids_to_tokens(0))
    return tokenizer


def token_embeddings(model: Any) -> Any:
    """Returns the token embeddings, (tokens, hidden); None for models without, such as CANINE."""
    try:
        return model.get_input_embeddings().weight
    except (NotImplementedError, AttributeError):
        return None


def settle(tokenizer: Any, **settings: Any) -> None:
    """Sets attributes of a tokenizer, and keeps them when the tokenizer is saved."""
    for name, value in settings.items():
        setattr(tokenizer, name, value)
        tokenizer.init_kwargs[name] = value


def settle_generation(model: Any, end_tokens: Sequence[int], tokenizer: Any) -> None:
    """Sets the tokens at which generation stops to those that end answers in training."""
    if end_tokens and model.can_generate():
        model.generation_config.eos_token_id = list(end_tokens)
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def load_model(
    spec: ModelSpec,
    label_names: Sequence[str],
    tokenizer: Any = None,
    *,
    keeps_dtype: bool = False,
    device: torch.device | None = None,
    quantized_for: Precision | None = None,
    revision: str | None = None,
) -> LoadedModel:
    """Loads the base model for the task.

    Weights are in fp32 on the CPU. With `keeps_dtype` they stay in 16 bits if all of them are saved
    in one such type; with `device` each is then read straight to it, without a copy on the host.
    With `quantized_for`, the precision of training, an adapter's base is quantized as the job says.
    `revision` is a commit of a base on the hub, by default the newest.
    Weights that the base lacks, such as a classifier's head, are initialised from torch's random
    state. A classifier for the same labels keeps its head, in the order of `label_names`; a
    classifier for other labels gets a new output layer. Only safetensors are read, and no code from
    the model's repository is run.

    Raises:
        ModelError: if the base cannot be loaded, or its weights do not fit its configuration.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place, auto = location.locate(spec.base), _class_for(spec)
    with as_model_error(f"the model of {spec.base} cannot be loaded"):
        own = transformers.AutoConfig.from_pretrained(
            place, trust_remote_code=False, revision=revision or NEWEST
        )
        _check_kind(own, auto, spec)
        config = _configured(own, spec, label_names, tokenizer)
        files = location.files_of(place, revision)
        narrow = low_precision.saved_dtype(files.place) if keeps_dtype else None
        model, info = auto.from_pretrained(
            place,
            config=config,
            revision=files.commit or NEWEST,  # of which transformers converts other weights
            use_safetensors=True,
            trust_remote_code=False,  # or it asks on the terminal whether to run the base's code
            dtype=narrow or torch.float32,
            **_placed(spec, quantized_for, device, reads_there=narrow is not None),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        if narrow is not None:
            low_precision.widen(model, auto, config)
        quantized.settle_layers(model)
    lacking, remarks = heads.settled(model, own, info, spec, label_names)
    if _layer_drop_fields(own.get_text_config()):
        remarks.insert(0, LAYER_DROP)
    model.config.architectures = [type(model).__name__]  # other servers go by it, not by weights
    if spec.dropout is not None:
        _set_dropout(model, spec.base, spec.dropout)
    fresh = sorted({name.rpartition(".")[0] for name in lacking})
    return LoadedModel(model, tuple(fresh), tuple(remarks), files.digest, files.commit)


def _placed(
    spec: ModelSpec,
    precision: Precision | None,
    device: torch.device | None,
    *,
    reads_there: bool,
) -> dict[str, Any]:
    """Returns where transformers reads weights to, and how it quantizes an adapter's base there."""
    kind = spec.adapter.quantization if spec.adapter and precision else None
    if kind is not None and precision is not None:
        found = {"quantization_config": quantized.settings(kind, precision)}
        return {**found, "device_map": {"": str(device or "cpu")}}
    return {"device_map": {"": str(device)} if device and reads_there else None}


def check_same(digests: Sequence[str], base: str) -> None:
    """Compares the digests of a base's weights that all workers have read.

    Raises:
        ModelError: if they differ.
    """
    if len(set(digests)) > 1:
        raise ModelError(
            f"the weights of {base} differ between workers; give all nodes the same files, or let"
            " all of them ask the Hub for its newest commit"
        )


def check_base(spec: ModelSpec, folder: Path) -> None:
    """Checks that a base can be used for the task, without its weights.

    It loads the tokenizer and builds the model on the meta device, which needs no memory.

    Raises:
        ModelError: if the tokenizer or the model cannot be loaded, or has no class for the task.
    """
    tokenizer = load_tokenizer(spec.base, folder)
    auto = _class_for(spec)
    with as_model_error(f"the model of {spec.base} cannot be loaded"):
        own = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _check_kind(own, auto, spec)
        with torch.device("meta"):
            auto.from_config(_configured(own, spec, ("0", "1"), tokenizer))


def _class_for(spec: ModelSpec) -> Any:
    return getattr(transformers, task_registry.find(spec.task).auto_class)


def _check_kind(own: Any, auto: Any, spec: ModelSpec) -> None:
    """Raises ModelError if transformers has no model of the base's type for the task."""
    if type(own) not in auto._model_mapping:
        raise ModelError(
            f"{spec.base} has the type {own.model_type}, for which transformers has no model for"
            f" {spec.task}; choose another base"
        )


def _configured(own: Any, spec: ModelSpec, label_names: Sequence[str], tokenizer: Any) -> Any:
    config = copy.deepcopy(own)
    parts = {id(part): part for part in (config, config.get_text_config())}.values()
    training_of(spec.task).configure(config, label_names)
    for part in parts:
        if tokenizer is not None:
            part.pad_token_id = tokenizer.pad_token_id
        for name in _layer_drop_fields(part):
            setattr(part, name, 0.0)
        if spec.dropout is not None:
            for name in dropout_fields(part):
                setattr(part, name, spec.dropout)
    return config


def dropout_fields(config: Any) -> list[str]:
    """Returns the fields of a configuration with dropout probabilities, without layer drop."""
    return [
        name
        for name, value in vars(config).items()
        if ("drop" in name and "layer" not in name)
        and (value is None or isinstance(value, int | float))
        and not isinstance(value, bool)
    ]


def _layer_drop_fields(config: Any) -> list[str]:
    """Returns the fields of a configuration by which whole layers are left out at random."""
    return [name for name, value in vars(config).items() if name.endswith("layerdrop") and value]


def _set_dropout(model: Any, base: str, probability: float) -> None:
    """Sets the probability of every dropout layer, also of those without a configuration field."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    for layer in layers:
        layer.p = probability
    if not layers and not dropout_fields(model.config.get_text_config()):
        raise ModelError(f"model.dropout: {base} has no dropout; remove the field")
