"""The words that people write, and the fields or values that they mean by them."""

import difflib
from collections.abc import Iterable

from jobs.loader.fields import all_field_paths

LIKENESS = 0.75
"""Least likeness of a word to one that is suggested for it; 1 for the same."""
MOST_PLACES = 2
"""Fields of one name that a hint lists; more would tell a reader little."""
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
    "lr_scheduler_type": "train.lr_schedule.type",
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.lr_schedule.warmup_ratio"),
    "sample_packing": "data.packing",
    "output_dir": "storage",
}
"""Words of the Trainer, Axolotl, LLaMA-Factory and SkyPilot, and the field that means the same."""


def field_of(word: str) -> str:
    """A clause that names the right field for a key of another trainer or section, else nothing."""
    key = word.lower().replace("-", "_")
    if key in OTHER_TRAINERS:
        return f"; write {OTHER_TRAINERS[key]}"
    places = [path for path in all_field_paths() if _leaf(path) == key and "." in path]
    return f"; it stands at {' or '.join(places)}" if 0 < len(places) <= MOST_PLACES else ""


def path_meant(path: str, known: Iterable[str]) -> str:
    """A clause that names the right field for a dotted path that is none, else nothing.

    Fields are like a path if their last names are like: sections are long, and would make any two
    fields of one section alike.
    """
    key, known = _leaf(path).lower().replace("-", "_"), tuple(known)
    other = OTHER_TRAINERS.get(key, "")
    if other.startswith(known):
        return f"; write {other}"
    leaf = most_like(key, map(_leaf, known))
    places = [place for place in known if _leaf(place) == leaf]
    best = difflib.get_close_matches(path.lower(), places, n=1, cutoff=0.0)
    return f"; did you mean {best[0]!r}?" if best else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A `; did you mean` clause for a near miss, else nothing."""
    match = most_like(word.lower(), known)
    return f"; did you mean {match!r}?" if match else ""


def most_like(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like another; None where none is really like it."""
    known = tuple(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=LIKENESS)
    return next(iter(close), None) or next((k for k in known if _is_one_slip(word, k)), None)


def _is_one_slip(word: str, other: str) -> bool:
    """Whether one letter too many, too few or wrong, or two swapped, make the difference."""
    start = _alike(word, other)
    mine, its = word[start:], other[start:]
    end = _alike(mine[::-1], its[::-1])
    mine, its = mine[: len(mine) - end], its[: len(its) - end]
    return max(len(mine), len(its)) <= 1 or (len(mine) == 2 and mine == its[::-1])


def _alike(word: str, other: str) -> int:
    """How many letters two words begin with alike."""
    pairs = enumerate(zip(word, other, strict=False))
    shortest = min(len(word), len(other))
    return next((index for index, (mine, its) in pairs if mine != its), shortest)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]
