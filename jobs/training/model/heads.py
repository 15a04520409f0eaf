"""The head of a base that is a classifier: kept, reordered or initialised again."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers

from jobs.errors import ModelError, listed
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.training.task import training_of

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
"""Suffixes of the names of classifier classes in transformers."""


def settled(
    model: Any,
    own: Any,
    info: Mapping[str, Any],
    spec: ModelSpec,
    label_names: Sequence[str],
) -> tuple[set[str], list[str]]:
    """Settles the head of a loaded model for the labels of a job.

    Args:
        model: The loaded model.
        own: Configuration of the base.
        info: What transformers found of the base's weights.
        spec: The model section of the job.
        label_names: In their order.

    Returns:
        Names of the weights that the base lacks, and remarks.

    Raises:
        ModelError: if the base's weights do not fit its configuration.
    """
    is_classifier = any(str(name).endswith(CLASSIFIERS) for name in own.architectures or ())
    is_other = bool(info["mismatched_keys"]) or is_classifier
    training = training_of(spec.task)
    is_labelled = training.has_labels
    head = _label_dimensions(spec, model.config) if is_labelled and is_other else {}
    lacking = {*info["missing_keys"], *_resized(info["mismatched_keys"], head, spec.base)}
    remarks = list[str]()
    if is_classifier and is_labelled:
        kind = task_registry.find(spec.task).auto_class.removeprefix("AutoModel")
        is_same_kind = any(str(name).endswith(kind) for name in own.architectures)
        # a regression's head is in the unit of its numbers
        is_kept = training.keeps_head and own.problem_type != "regression"
        kept_for = (label_names if is_kept else ()) if is_same_kind else None
        remarks.append(_settle_head(model, head, lacking, own, kept_for))
    return lacking, remarks


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


def _label_dimensions(spec: ModelSpec, config: Any) -> dict[str, int]:
    """Returns the parameters whose shape depends on the number of labels, with that dimension."""
    auto = getattr(transformers, task_registry.find(spec.task).auto_class)
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
