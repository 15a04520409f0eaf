"""How many tokens a model takes, from its learned position embeddings."""

from typing import Any

import torch

POSITIONS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Names of modules with learned position embeddings."""


def learned_positions(model: Any) -> float:
    """Returns the number of learned positions; infinite for models that compute positions."""
    found = [
        module.num_embeddings
        - (-1 if module.padding_idx is None else module.padding_idx)
        - 1
        - getattr(module, "offset", 0)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in POSITIONS
    ]
    return min(found, default=float("inf"))
