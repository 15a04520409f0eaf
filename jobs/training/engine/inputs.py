"""The inputs of a model besides its tokens."""

from collections.abc import Mapping

import torch

from jobs.training.data.tokens import POSITION_IDS

Batch = Mapping[str, torch.Tensor]


def attention_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """Returns the attention mask, or the positions of packed rows; each is (rows, tokens).

    From positions alone, transformers masks the samples of a row from each other, also within
    attention windows and chunks; `proofs.proven` tests whether the model does so. Each filler token
    has position 0, so it is a sample of its own.
    """
    if POSITION_IDS in batch:
        return {"position_ids": batch[POSITION_IDS]}
    return {"attention_mask": batch["attention_mask"]}
