"""What a batch is judged by while training: model inputs and summed loss for each task."""

from collections.abc import Callable
from typing import Any

import torch

from jobs.spec.model import Task
from jobs.training.data.tokens import LOSS_MASK, POSITION_IDS

Batch = dict[str, torch.Tensor]
Objective = Callable[[Any, Batch, torch.Tensor], torch.Tensor]
"""Of a model, a batch and the rows' weights: the loss summed over everything that counts."""


def classification_loss(model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each row times its weight (0 for filler rows), summed."""
    logits = classify(model, batch)
    losses = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
    return (losses * weights).sum()


def classify(model: Any, batch: Batch) -> torch.Tensor:
    """Logits of (rows, classes) in fp32."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: torch.Tensor = model(**inputs).logits
    return logits.float()


def language_loss(model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each response token times its row's weight, summed."""
    losses, mask, _ = predict_tokens(model, batch)
    return (losses * mask * weights[:, None]).sum()


def predict_tokens(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, whether it counts, and whether the best guess is right; each (rows, tokens - 1)."""
    ids = batch["input_ids"]
    logits = model(input_ids=ids, use_cache=False, **attention_inputs(batch)).logits[:, :-1]
    targets = ids[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="none"
    ).view_as(targets)
    return losses, batch[LOSS_MASK][:, 1:].float(), logits.argmax(dim=-1) == targets


def attention_inputs(batch: Batch) -> Batch:
    """Attention mask, or the positions of packed rows.

    From positions alone transformers masks samples from each other, within the windows and chunks
    of models that have them; `proofs.proven` tries whether the model does so. Filler tokens stand
    at position 0, each a sample by itself.
    """
    if POSITION_IDS in batch:
        return {"position_ids": batch[POSITION_IDS]}
    return {"attention_mask": batch["attention_mask"]}


OBJECTIVES: dict[Task, Objective] = {
    "text-classification": classification_loss,
    "causal-lm": language_loss,
}
