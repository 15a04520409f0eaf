"""Changes single fields of a job: `--set path=value`, and the values of a search space."""

import copy
from collections.abc import Sequence
from typing import Any

from jobs.errors import JobFileError, Problem
from jobs.loader import source
from jobs.loader.fields import all_field_paths, is_field
from jobs.loader.words import path_meant
from jobs.spec.sweep import LogUniform, Uniform

SEARCHABLE = (
    "train.micro_batch_size",
    "train.precision",
    "train.optimizer.lr",
    "train.optimizer.weight_decay",
    "train.optimizer.max_grad_norm",
    "train.optimizer.momentum",
    "train.optimizer.layerwise_lr_decay",
    "train.optimizer.head_lr",
    "train.lr_schedule.type",
    "train.lr_schedule.warmup_ratio",
    "train.lr_schedule.power",
    "train.lr_schedule.floor",
    "model.dropout",
    "seed",
)
"""Fields that a sweep may search."""

LISTED = ("train.micro_batch_size", "train.precision", "train.lr_schedule.type", "seed")
"""Those of them that need a list of values, because numbers from a range do not fit."""

ALL_FIELDS = "; `winnow schema --markdown` lists all fields"

SPEED_FIELDS = ("train.micro_batch_size", "train.precision")
"""Searched fields that change the speed of training, so that probes decide them."""


def apply(document: source.Document, settings: Sequence[str]) -> source.Document:
    """Returns a copy of the document with each `path=value` set.

    Raises:
        JobFileError: if a setting has no `=`, or its path is not a field.
    """
    values, positions = copy.deepcopy(document.values), dict(document.positions)
    for setting in settings:
        path, separator, text = setting.partition("=")
        if not separator or not path:
            raise _refuse(setting, "is not PATH=VALUE, such as train.epochs=1")
        if not is_field(path):
            hint = path_meant(path, all_field_paths())
            raise _refuse(path, f"is not a field of a job{hint or ALL_FIELDS}")
        put(values, path, source.parse(f"value: {text}", "--set").values["value"])
        positions[tuple(path.split("."))] = source.Position(0, 0, "--set")
    return source.Document(document.file, values, positions, document.keys, document.problems)


def put(values: dict[str, Any], path: str, value: object) -> None:
    """Sets one field of nested mappings in place, and creates the mappings above it."""
    *parents, last = path.split(".")
    for part in parents:
        inner = values.get(part)
        values[part] = inner if isinstance(inner, dict) else {}
        values = values[part]
    values[last] = value


def values_to_check(space: tuple[Any, ...] | LogUniform | Uniform) -> tuple[Any, ...]:
    """Returns the listed values, or both ends of a range."""
    if isinstance(space, LogUniform):
        return space.loguniform
    return space.uniform if isinstance(space, Uniform) else space


def _refuse(path: str, message: str) -> JobFileError:
    return JobFileError([Problem("--set", 0, 0, path, message)])
