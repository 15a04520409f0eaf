"""Suggests the field or value that a user meant by an unknown word."""

import difflib
from collections.abc import Iterable

from jobs.loader.fields import all_field_paths
from jobs.spec import task_registry

LEAST_SIMILARITY = 0.75
"""Least similarity of a suggestion to the written word; 1 means equal."""
MOST_PLACES = 2
"""Most fields of the same name that a hint lists; a longer list would not help."""
OTHER_TRAINERS = {
    **dict.fromkeys(("lr", "learning_rate", "lr_rate"), "train.optimizer.lr"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "max_steps"), "train.epochs"),
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
    **dict.fromkeys(
        ("eval_steps", "eval_strategy", "evaluation_strategy"), "train.eval.every, such as 100steps"
    ),
    **dict.fromkeys(("save_steps", "save_strategy"), "train.checkpoint.every, such as 100steps"),
    "save_total_limit": "train.checkpoint.keep",
    "torch_compile": "train.compile",
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), "train.lr_schedule.type"),
    "lr_scheduler_kwargs": "train.lr_schedule.power or train.lr_schedule.floor",
    **dict.fromkeys(("optim", "optimizer_type"), "train.optimizer.name"),
    **dict.fromkeys(
        ("early_stopping_patience", "early_stop_patience"), "train.early_stopping.patience"
    ),
    **dict.fromkeys(
        ("metric_for_best_model", "load_best_model_at_end", "greater_is_better"),
        "train.early_stopping.metric",
    ),
    **dict.fromkeys(("layer_decay", "llrd"), "train.optimizer.layerwise_lr_decay"),
    **dict.fromkeys(("min_lr_rate", "min_lr_ratio", "min_lr"), "train.lr_schedule.floor"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.lr_schedule.warmup_ratio"),
    "sample_packing": "data.packing",
    "mlm_probability": "data.mask_share",
    "label_smoothing_factor": "data.label_smoothing",
    "problem_type": "data.problem",
    "max_source_length": "data.max_length",
    "val_max_target_length": "data.max_target_length",
    "source_prefix": "data.prefix",
    **dict.fromkeys(("num_beams", "generation_num_beams"), "data.generate.num_beams"),
    "generation_max_length": "data.generate.max_new_tokens",
    "predict_with_generate": "train.eval.metrics, such as [rougeL]",
    "output_dir": "storage",
}
"""Fields of the Trainer, Axolotl, LLaMA-Factory and SkyPilot with the field of the same meaning."""


def field_of(word: str) -> str:
    """Returns a clause with the field for a key of another trainer or section; empty if unknown."""
    key = word.lower().replace("-", "_")
    if key in OTHER_TRAINERS:
        return f"; write {OTHER_TRAINERS[key]}"
    places = [path for path in all_field_paths() if _leaf(path) == key and "." in path]
    return f"; it stands at {' or '.join(places)}" if 0 < len(places) <= MOST_PLACES else ""


def path_meant(path: str, known: Iterable[str]) -> str:
    """Returns a clause with the field that an unknown dotted path resembles; empty if none does.

    Only the last names are compared: sections have long names, which would make any two fields of
    one section similar.
    """
    key, known = _leaf(path).lower().replace("-", "_"), tuple(known)
    other = OTHER_TRAINERS.get(key, "")
    if other.startswith(known):
        return f"; write {other}"
    leaf = most_similar(key, map(_leaf, known))
    places = [place for place in known if _leaf(place) == leaf]
    best = difflib.get_close_matches(path.lower(), places, n=1, cutoff=0.0)
    return f"; did you mean {best[0]!r}?" if best else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a `; did you mean` clause for a similar word; empty if there is none."""
    known = tuple(known)
    key = word.lower().replace("_", "-")
    other = next((task.name for task in task_registry.every() if key in task.other_names), "")
    if other in known:
        return f"; write {other!r}"
    match = most_similar(word.lower(), known)
    return f"; did you mean {match!r}?" if match else ""


def most_similar(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word most similar to another; None if no word is similar enough."""
    known = tuple(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=LEAST_SIMILARITY)
    return next(iter(close), None) or next((k for k in known if _is_one_slip(word, k)), None)


def _is_one_slip(word: str, other: str) -> bool:
    """Returns whether two words differ by one letter added, removed or changed, or two swapped."""
    start = _common_prefix(word, other)
    first, second = word[start:], other[start:]
    end = _common_prefix(first[::-1], second[::-1])
    first, second = first[: len(first) - end], second[: len(second) - end]
    return max(len(first), len(second)) <= 1 or (len(first) == 2 and first == second[::-1])


def _common_prefix(word: str, other: str) -> int:
    """Returns the length of the common prefix of two words."""
    pairs = enumerate(zip(word, other, strict=False))
    shortest = min(len(word), len(other))
    return next((index for index, (first, second) in pairs if first != second), shortest)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]
