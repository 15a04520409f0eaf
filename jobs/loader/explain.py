"""What pydantic says about a job file, turned into problems with a place and a way out."""

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from jobs.errors import Problem
from jobs.loader.source import Document, Path, dotted
from jobs.spec.job import JobSpec

MESSAGES = {
    "missing": "is required",
    "int_type": "{value} is not a whole number",
    "int_from_float": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "bool_type": "{value} is not true or false",
    "string_type": "{value} is not text; put it in quotes if text is meant",
    "finite_number": "{value} is not a finite number",
    "greater_than": "{value} must be greater than {gt}",
    "greater_than_equal": "{value} must be at least {ge}",
    "less_than": "{value} must be less than {lt}",
    "less_than_equal": "{value} must be at most {le}",
    "tuple_type": "{value} is not a list; write [a, b]",
    "dict_type": "{value} is not a mapping of keys",
    "model_type": "{value} is not a mapping of keys",
    "too_short": "has {actual_length} items but needs at least {min_length}",
    "too_long": "has {actual_length} items but may have at most {max_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "{value} does not match {pattern}",
}
"""Sentence for each kind of pydantic error; other kinds keep pydantic's own words."""

PATTERNS = {
    "name": "is no name; use up to 63 lower-case letters, digits and inner hyphens, like sst2-bert",
    "serve.route": "is no route; start with / and use lower-case letters, digits, - and _: /sst2",
}
"""Sentence for the fields whose pattern would tell a reader little."""


MOST_PLACES = 2
"""Fields of one name that a hint lists; more would tell a reader little."""
OTHER_TRAINERS = {
    **dict.fromkeys(("lr", "learning_rate", "lr_rate"), "train.optimizer.lr"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs"), "train.epochs"),
    **dict.fromkeys(("bf16", "fp16", "tf32"), "train.precision: bf16, fp16, tf32 or auto"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "micro_batch", "batch_size"),
        "train.global_batch_size, the samples of a step over all workers",
    ),
    "gradient_accumulation_steps": (
        "train.global_batch_size, which passes are accumulated for as needed"
    ),
    **dict.fromkeys(("lora_r", "lora_rank"), "model.adapter.r"),
    "lora_alpha": "model.adapter.alpha",
    "lora_dropout": "model.adapter.dropout",
    "lora_target_modules": "model.adapter.target_modules",
    **dict.fromkeys(("weight_decay", "wd"), "train.optimizer.weight_decay"),
    "max_grad_norm": "train.optimizer.max_grad_norm",
    **dict.fromkeys(("max_seq_length", "sequence_len", "cutoff_len"), "data.max_length"),
    **dict.fromkeys(("model_name_or_path", "base_model"), "model.base"),
    **dict.fromkeys(("gpus", "gpu", "accelerators"), "resources.any_of: [{accelerators: T4:1}]"),
    **dict.fromkeys(("eval_steps", "evaluation_strategy"), "train.eval.every, such as 100steps"),
    **dict.fromkeys(("save_steps", "save_strategy"), "train.checkpoint.every, such as 100steps"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.lr_schedule.warmup_ratio"),
    "sample_packing": "data.packing",
    "output_dir": "storage",
}
"""Words of the Trainer, Axolotl, LLaMA-Factory and SkyPilot, and the field that means the same."""


def explain(errors: Iterable[ErrorDetails], document: Document) -> list[Problem]:
    """Turn pydantic's errors into problems, one for each place in the file."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(written_path(error, document), []).append(error)
    return [
        _problem(path, group, document)
        for path, group in by_path.items()
        if not any(other[: len(path)] == path and len(other) > len(path) for other in by_path)
    ]


def written_path(error: ErrorDetails, document: Document) -> Path:
    """The error's location without the names that pydantic adds for members of a union."""
    path: Path = ()
    value: Any = document.values
    parts = error["loc"]
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if isinstance(value, dict) and isinstance(part, str):
            if part in value:
                path, value = (*path, part), value[part]
            elif is_last and error["type"] == "missing":
                path = (*path, part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path, value = (*path, part), value[part]
    return path


def elsewhere(word: str) -> str:
    """Returns a clause that names the right field for a key of another trainer or section."""
    key = word.lower().replace("-", "_")
    if key in OTHER_TRAINERS:
        return f"; write {OTHER_TRAINERS[key]}"
    places = [path for path in all_field_paths() if path.rpartition(".")[2] == key and "." in path]
    return f"; it stands at {' or '.join(places)}" if 0 < len(places) <= MOST_PLACES else ""


def nearest(word: object, known: Iterable[str]) -> str:
    """A `; did you mean` clause for a near miss, else nothing."""
    match = difflib.get_close_matches(str(word).lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def _problem(path: Path, errors: list[ErrorDetails], document: Document) -> Problem:
    first = errors[0]
    if first["type"] == "extra_forbidden":
        known = field_names(path[:-1])
        hint = elsewhere(str(path[-1])) or nearest(path[-1], known)
        hint = hint or f"; known here: {', '.join(known)}"
        return document.problem(path, f"unknown key{hint}", key=True)
    if dotted(path) in PATTERNS and first["type"] == "string_pattern_mismatch":
        return document.problem(path, f"{_shown(first['input'])} {PATTERNS[dotted(path)]}")
    if all(error["type"] == "literal_error" for error in errors):
        names = [name for error in errors for name in _expected(error)]
        return document.problem(path, _not_one_of(first["input"], names))
    return document.problem(path, " or ".join(dict.fromkeys(_sentence(e) for e in errors)))


def _sentence(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    value = _shown(error["input"])
    if error["type"] == "literal_error":
        return _not_one_of(error["input"], _expected(error))
    template = MESSAGES.get(error["type"])
    return template.format(value=value, **context) if template else f"{value}: {error['msg']}"


def _expected(error: ErrorDetails) -> list[str]:
    expected = str(error.get("ctx", {})["expected"]).replace(" or ", ", ")
    return [name.strip().strip("'") for name in expected.split(", ")]


def _not_one_of(value: object, names: list[str]) -> str:
    if len(names) == 1:
        return f"{_shown(value)} is not {names[0]}"
    return f"{_shown(value)} is not one of {', '.join(names)}{nearest(value, names)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def field_names(path: Path) -> list[str]:
    """Names of the fields that may stand below `path`; empty where keys are free or unknown."""
    return sorted({name for model in _models_at(path) for name in model.model_fields})


def _models_at(path: Path) -> list[type[BaseModel]]:
    models: list[type[BaseModel]] = [JobSpec]
    for part in path:
        annotations = (
            [model.model_fields[part].annotation for model in models if part in model.model_fields]
            if isinstance(part, str)
            else models
        )
        models = [found for annotation in annotations for found in _models_in(annotation)]
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple, dict):
        return [model for inner in get_args(annotation) for model in _models_in(inner)]
    return []


def all_field_paths() -> list[str]:
    """Dotted paths of every field of a job, for near misses in `--set` and search spaces."""
    paths: list[str] = []

    def walk(model: type[BaseModel], path: Path) -> None:
        for name, info in model.model_fields.items():
            paths.append(dotted((*path, name)))
            for inner in _models_in(info.annotation):
                walk(inner, (*path, name))

    walk(JobSpec, ())
    return paths
