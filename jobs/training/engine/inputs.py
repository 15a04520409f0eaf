"""The inputs of a model besides its tokens."""

from collections.abc import Mapping
from typing import Any

import torch

from jobs.training.data.tokens import POSITION_IDS, SAMPLE_ENDS
from jobs.training.model import packed_attention

Batch = Mapping[str, torch.Tensor]


def attention_inputs(batch: Batch) -> dict[str, Any]:
    """Returns the attention mask, or the positions of packed rows and where their samples end.

    From positions alone, (rows, tokens), transformers masks the samples of a row from each other,
    also within attention windows and chunks; `proofs.proven` tests whether the model does so, and
    whether it may attend to each sample by itself.
    """
    if POSITION_IDS not in batch:
        return {"attention_mask": batch["attention_mask"]}
    positions = batch[POSITION_IDS]
    found: dict[str, Any] = {"position_ids": positions}
    if SAMPLE_ENDS in batch:
        found |= packed_attention.inputs(batch[SAMPLE_ENDS], positions.shape[1])
    return found
