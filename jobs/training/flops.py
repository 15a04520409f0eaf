"""Floating-point operations of training, counted in the model."""

from dataclasses import dataclass
from typing import Any

import torch

from jobs.training.data.tokens import INPUT_IDS, TARGET_IDS
from jobs.training.model.adapter import unwrapped
from jobs.training.session import Session

TRAINED, FROZEN = 6, 4
"""FLOP per weight and token; a frozen weight needs no gradient."""
ATTENTION = 12.0
"""FLOP per hidden unit, layer and pair of tokens."""


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOP of forward and backward pass.

    Source: Chowdhery et al., 2022, "PaLM", appendix B.
    """

    per_token: float
    """Of linear layers, for each token of a row; for as many texts as the row has."""
    per_pair: float
    """Of attention, for each token and each token of its row."""
    per_sample: float = 0.0
    """Of a decoder's work on targets of mean length, without what depends on the source."""


def flops_of(session: Session) -> Flops:
    """Returns the FLOP of a session's model; a decoder's are those of targets of mean length."""
    model = unwrapped(session.model)
    targets = session.corpus.train.ragged.get(TARGET_IDS)
    if targets is None:
        ragged = session.corpus.train.ragged
        texts = 1 + sum(ragged[name].is_sequence for name in ragged if name.endswith(INPUT_IDS))
        pairs = texts * ATTENTION * _size(model.config, "num_hidden_layers")
        return Flops(texts * _linear(model), pairs)
    encoder, config = model.get_encoder(), model.config
    written = float(targets.lengths.mean())
    layers = _size(config, "num_decoder_layers", "decoder_layers", "num_hidden_layers")
    return Flops(
        per_token=_linear(encoder) + ATTENTION * layers * written,
        per_pair=ATTENTION * _size(config, "num_hidden_layers"),
        per_sample=written * (_linear(model) - _linear(encoder) + ATTENTION * layers * written),
    )


def _linear(module: Any) -> float:
    """Returns the FLOP for one token in linear layers."""
    linear = [each for each in module.modules() if isinstance(each, torch.nn.Linear)]
    # a weight in 4 bits has fewer elements than inputs times outputs
    kinds = ((each.in_features * each.out_features, each.weight.requires_grad) for each in linear)
    return float(sum(size * (TRAINED if trained else FROZEN) for size, trained in kinds))


def _size(config: Any, *names: str) -> int:
    """Returns layers times hidden size; `names` are of the layers' number, the first that is."""
    layers = next((getattr(config, name) for name in names if hasattr(config, name)), 0)
    return int(layers or 0) * int(getattr(config, "hidden_size", 0))
