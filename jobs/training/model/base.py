"""The base model and its tokenizer, loaded for the task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from jobs.errors import ModelError
from jobs.spec.model import ModelSpec
from jobs.training.model import location

DROPOUT_FIELDS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "dropout",
    "attention_dropout",
    "seq_classif_dropout",
    "embd_pdrop",
    "resid_pdrop",
    "attn_pdrop",
)
"""Names under which the configurations of transformers keep their dropout probabilities."""


def load_tokenizer(base: str) -> Any:
    """The fast tokenizer that belongs to the model."""
    transformers.utils.logging.set_verbosity_error()
    place = location.locate(base)
    try:
        return transformers.AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ModelError(_unloadable("tokenizer", base, error)) from None


def load_model(spec: ModelSpec, label_names: Sequence[str]) -> Any:
    """The base model for the task, in fp32 on the CPU; a classifier's head is fresh.

    The head is drawn from torch's current random state. Only safetensors are read and no code from
    the model's repository is run.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = location.locate(spec.base)
    try:
        config = _configure(place, spec, label_names)
        auto = transformers.AutoModelForSequenceClassification
        if spec.task == "causal-lm":
            auto = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(place, config=config, use_safetensors=True, dtype="float32")
    except (OSError, ValueError) as error:
        raise ModelError(_unloadable("model", spec.base, error)) from None
    model.config.architectures = [type(model).__name__]  # other servers go by it, not by weights
    return model


def _configure(place: Path | str, spec: ModelSpec, label_names: Sequence[str]) -> Any:
    labels: dict[str, Any] = {}
    if spec.task == "text-classification":
        labels = {
            "num_labels": len(label_names),
            "id2label": dict(enumerate(label_names)),
            "label2id": {name: index for index, name in enumerate(label_names)},
        }
    config = transformers.AutoConfig.from_pretrained(place, **labels)
    if spec.dropout is not None:
        for name in DROPOUT_FIELDS:
            if hasattr(config, name):
                setattr(config, name, spec.dropout)
    return config


def _unloadable(what: str, base: str, error: Exception) -> str:
    return f"the {what} of {base} cannot be loaded: {str(error).splitlines()[0]}"
