"""Which tasks a base model can do, from its files alone: neither weights nor torch are loaded."""

import json
from pathlib import Path
from typing import Any

from jobs.errors import ModelError
from jobs.spec import task_registry
from jobs.spec.task import Task
from jobs.training.model import location, tables

CAUSAL, MASKED, WRITERS = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
"""Auto classes whose tables tell encoders from decoders."""
BARE = "AutoModel"
"""The auto class of models without a head, whose table lists models of images and sounds too."""
NOT_TEXT = ("AutoModelForZeroShotImageClassification", "AutoModelForSpeechSeq2Seq")
"""Auto classes of models that have a tokenizer and read more than text."""
TWO_WAY = frozenset({"xlnet", "bert-generation"})
"""Encoders that transformers has no masked model of."""
READS_BACKWARDS = ("is_decoder", "causal")
"""Fields of a configuration by which an encoder's layers see earlier tokens alone."""
FAST = ("", "TokenizersBackend", "PreTrainedTokenizer", "MistralCommonBackend")
"""Tokenizer classes that stand for any fast tokenizer, without their ending `Fast`."""
TOKENIZER_CONFIG, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"


def check(base: str, folder: Path, task: Task) -> None:
    """Checks that a base in a local folder has a model and a tokenizer for a task.

    A base of a type that is in none of transformers' tables passes: it may be registered when its
    package is imported, and is checked again before training.

    Raises:
        ModelError: with the tasks that the base can do.
    """
    config = location.read_config(folder)
    if not can_do(config, task):
        raise ModelError(_refusal(base, config, task))
    name = _tokenizer_class(config, folder)
    if name and tables.is_python_tokenizer(name, str(config.get("model_type"))):
        what = "choose a base that has one"
        if (folder / TOKENIZER_FILE).is_file():
            what = f"set tokenizer_class to TokenizersBackend in its {TOKENIZER_CONFIG}"
        raise ModelError(
            f"the tokenizer of {base}, {name}, is written in Python, and endpoints run those of"
            f" the package tokenizers alone; {what}"
        )


def can_do(config: dict[str, Any], task: Task) -> bool:
    """Returns whether transformers has a model for the task of a configuration's type."""
    kind, auto = config.get("model_type"), task.auto_class
    is_listed = isinstance(kind, str) and _is_known(kind)
    if not is_listed or not tables.model_types(auto):
        return True
    if auto == BARE:
        return _reads_text(kind) and not _needs_target(kind)
    return kind in tables.model_types(auto) and not (auto == CAUSAL and _reads_both_ways(config))


def _reads_text(kind: object) -> bool:
    """Returns whether a model without a head reads text alone."""
    reads_more = any(kind in tables.model_types(auto) for auto in NOT_TEXT)
    return not reads_more and (kind in tables.tokenizers() or kind in _types_with_heads())


def _needs_target(kind: object) -> bool:
    """Returns whether a model without a head has a decoder that must be given a text of its own.

    Models that predict hidden tokens too, as BART, give theirs what the encoder reads.
    """
    return kind in tables.model_types(WRITERS) - tables.model_types(MASKED)


def folder_of(place: Path | str) -> Path | None:
    """Returns the folder of a located base; None for one of the hub that is not in its cache."""
    if isinstance(place, Path):
        return place
    from huggingface_hub import constants

    name = constants.REPO_ID_SEPARATOR.join(("models", *place.split("/")))
    if not (Path(constants.HF_HUB_CACHE) / name).is_dir():
        return None
    import huggingface_hub  # its functions take a quarter of a second

    try:
        path = huggingface_hub.try_to_load_from_cache(place, "config.json")
    except ValueError:  # no id of a model
        return None
    return Path(path).parent if isinstance(path, str) else None


def _is_known(kind: str) -> bool:
    """Returns whether transformers lists a model type; most are in the table of bare models."""
    return kind in tables.model_types(BARE) or kind in _types_with_heads()


def _types_with_heads() -> frozenset[str]:
    """Returns the model types that some task finds with a head."""
    autos = {task.auto_class for task in task_registry.every()} - {BARE}
    return frozenset(kind for auto in autos for kind in tables.model_types(auto))


def _reads_both_ways(config: dict[str, Any]) -> bool:
    """Returns whether each token of an encoder sees later ones.

    Types that transformers has both a masked and a causal model of are encoders; those that write
    a target too have a decoder of their own.
    """
    kind = config.get("model_type")
    is_encoder = kind in TWO_WAY | (tables.model_types(MASKED) - tables.model_types(WRITERS))
    return is_encoder and not any(config.get(name) is True for name in READS_BACKWARDS)


def _refusal(base: str, config: dict[str, Any], task: Task) -> str:
    kind = config.get("model_type")
    why = f"for which transformers has no model for {task.name}"
    if task.auto_class == BARE and _needs_target(kind):
        why = f"an encoder-decoder, whose decoder needs a second text; {task.name} has one"
    elif task.auto_class == BARE:
        why = "which does not read text alone"
    if task.auto_class == CAUSAL and kind in tables.model_types(CAUSAL):
        why = f"an encoder: it sees the words that {task.name} asks it to predict"
    able = [each.name for each in task_registry.every() if can_do(config, each)]
    if not able:
        return f"{base} has the type {kind}, {why} or any other task; choose another base"
    return (
        f"{base} has the type {kind}, {why}; choose another base, or one of its tasks:"
        f" {', '.join(able)}"
    )


def _tokenizer_class(config: dict[str, Any], folder: Path) -> str:
    """Returns the tokenizer class that transformers takes; empty if it is unknown or any fast one.

    It is the class that the folder names, unless the type's own class stands for any.
    """
    usual = tables.tokenizers().get(str(config.get("model_type")), "").removesuffix("Fast")
    try:
        settings = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    named = settings.get("tokenizer_class") if isinstance(settings, dict) else None
    named = str(named or config.get("tokenizer_class") or usual).removesuffix("Fast")
    return "" if usual in FAST[1:] or named in FAST else named
