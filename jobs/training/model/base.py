"""Loads the base model and its tokenizer for a task, and sets them to the same padding token."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.errors import ModelError, listed
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.spec.train import Precision
from jobs.training.model import location, low_precision, quantized
from jobs.training.model.library import as_model_error
from jobs.training.task import training_of

LAYER_DROP = (
    "the base leaves out whole layers at random (layerdrop); training does not, because workers"
    " would exchange gradients of different layers"
)
NEWEST = "main"
"""The hub's name for the newest commit of a repository."""
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
"""Suffixes of the names of classifier classes in transformers."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A base model for its task."""

    model: Any
    fresh: tuple[str, ...] = ()
    """Modules that the base lacks; their weights are initialised from torch's random state."""
    remarks: tuple[str, ...] = ()
    """Whether the head of a base that is a classifier was kept, and what training switches off."""
    revision: str = ""
    """Commit of a base on the hub; empty for others."""


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
        revision = revision or location.commit_of(place)
        config = _configured(own, spec, label_names, tokenizer)
        narrow = low_precision.saved_dtype(place) if keeps_dtype else None
        model, info = auto.from_pretrained(
            place,
            config=config,
            revision=revision or NEWEST,
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
    lacking, remarks = _settled(model, own, config, info, spec, label_names)
    model.config.architectures = [type(model).__name__]  # other servers go by it, not by weights
    if spec.dropout is not None:
        _set_dropout(model, spec.base, spec.dropout)
    fresh = sorted({name.rpartition(".")[0] for name in lacking})
    return LoadedModel(model, tuple(fresh), tuple(remarks), revision or "")


def _settled(
    model: Any,
    own: Any,
    config: Any,
    info: Mapping[str, Any],
    spec: ModelSpec,
    label_names: Sequence[str],
) -> tuple[set[str], list[str]]:
    """Settles the head of a loaded model.

    Args:
        model: The loaded model.
        own: Configuration of the base.
        config: Configuration of the model.
        info: What transformers found of the base's weights.
        spec: The model section of the job.
        label_names: In their order.

    Returns:
        Names of the weights that the base lacks, and remarks.
    """
    auto = _class_for(spec)
    is_classifier = any(str(name).endswith(CLASSIFIERS) for name in own.architectures or ())
    is_other = bool(info["mismatched_keys"]) or is_classifier
    training = training_of(spec.task)
    is_labelled = training.has_labels
    head = _label_dimensions(auto, config) if is_labelled and is_other else {}
    lacking = {*info["missing_keys"], *_resized(info["mismatched_keys"], head, spec.base)}
    remarks = [LAYER_DROP] if _layer_drop_fields(own.get_text_config()) else []
    if is_classifier and is_labelled:
        kind = task_registry.find(spec.task).auto_class.removeprefix("AutoModel")
        is_same_kind = any(str(name).endswith(kind) for name in own.architectures)
        # a regression's head is in the unit of its numbers
        is_kept = training.keeps_head and own.problem_type != "regression"
        kept_for = (label_names if is_kept else ()) if is_same_kind else None
        remarks.append(_settle_head(model, head, lacking, own, kept_for))
    return lacking, remarks


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


def _resized(mismatched: Iterable[Any], head: Mapping[str, int], base: str) -> Iterator[str]:
    """Yields names of saved weights of another shape; only an output layer's may differ.

    Raises:
        ModelError: for any other weight.
    """
    for name, saved, wanted in mismatched:
        if name not in head:
            raise ModelError(
                f"{base}: the saved weight {name} has the shape {tuple(saved)}, and config.json"
                f" gives {tuple(wanted)}; use a base whose weights and config.json belong together"
            )
        yield name


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


def _label_dimensions(auto: Any, config: Any) -> dict[str, int]:
    """Returns the parameters whose shape depends on the number of labels, with that dimension."""
    wider = copy.deepcopy(config)
    wider.num_labels = config.num_labels + 1
    with torch.device("meta"):
        one, other = (dict(auto.from_config(c).named_parameters()) for c in (config, wider))
    return {
        name: next(i for i, size in enumerate(weight.shape) if size != other[name].shape[i])
        for name, weight in one.items()
        if weight.shape != other[name].shape
    }


def _settle_head(
    model: Any,
    head: Mapping[str, int],
    lacking: set[str],
    own: Any,
    label_names: Sequence[str] | None,
) -> str:
    """Reorders the output layer of a classifier to `label_names`, or initialises it again.

    `label_names` is None if the base is a classifier for another task. Adds the initialised
    parameters to `lacking`. Returns a remark for the run's log.
    """
    before = [str(own.id2label[index]) for index in sorted(own.id2label)]
    kept = {name: dimension for name, dimension in head.items() if name not in lacking}
    if label_names is not None and sorted(before) == sorted(label_names):
        order = torch.tensor([before.index(name) for name in label_names])
        for name, dimension in kept.items():
            weight = model.get_parameter(name)
            weight.data = weight.data.index_select(dimension, order.to(weight.device))
        return "the base is a classifier for the same labels, so its head is kept"
    std = getattr(own, "initializer_range", None) or 0.02
    for name in kept:
        weight = model.get_parameter(name)
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=std)
        else:
            torch.nn.init.zeros_(weight)
    lacking.update(kept)
    return (
        f"the base is a classifier for other labels ({listed(before)}), so its output layer is"
        " initialised again"
    )
