"""What a batch gives a model besides its tokens."""

from collections.abc import Mapping

import torch

from jobs.training.data.tokens import POSITION_IDS

Batch = Mapping[str, torch.Tensor]


def attention_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    """Attention mask, or the positions of packed rows.

    From positions alone transformers masks samples from each other, within the windows and chunks
    of models that have them; `proofs.proven` tries whether the model does so. Filler tokens stand
    at position 0, each a sample by itself.
    """
    if POSITION_IDS in batch:
        return {"position_ids": batch[POSITION_IDS]}
    return {"attention_mask": batch["attention_mask"]}
