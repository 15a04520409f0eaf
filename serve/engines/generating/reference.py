"""What a language model itself answers, by which engines that write text are checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from serve.engines.generating.choice import EXACT_BOUND, ROUNDED_BOUND

PROMPT_TOKENS = (3, 9, 16)
"""Tokens of each prompt, at most."""
ANSWER_TOKENS = 12
"""Most tokens of each answer."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Prompts with the likeliest answers of a model, and the logits of each token."""

    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]
    logits: tuple[torch.Tensor, ...]
    """Of each answer, [tokens, vocabulary], on the host."""
    bound: float
    """Most that a chosen token's logit may lack, as a share of the largest."""

    def difference(self, answers: Sequence[Sequence[int]]) -> str:
        """Returns how an engine's likeliest answers differ; empty if they are the model's.

        Behind a token that is as likely as the model's own, within the bound, an answer may go on
        otherwise.
        """
        for place, (own, logits, found) in enumerate(
            zip(self.answers, self.logits, answers, strict=True)
        ):
            for at, (token, row) in enumerate(zip(own, logits, strict=True)):
                if at >= len(found):
                    return f"answer {place + 1} ends after {len(found)} tokens of {len(own)}"
                if found[at] == token:
                    continue
                if float(row[token] - row[found[at]]) > self.bound * float(row.abs().max()):
                    return f"token {at + 1} of answer {place + 1} is another than the model's"
                break
        return ""


@torch.inference_mode()
def reference_of(model: Any, longest: int) -> Reference:
    """Computes the likeliest answers to random prompts, without a cache or a batch.

    Args:
        model: A causal model of transformers, on its device.
        longest: Most tokens of a prompt with its answer.
    """
    draw = torch.Generator().manual_seed(0)
    most = model.get_input_embeddings().weight.shape[0]
    prompts, answers, kept = list[tuple[int, ...]](), list[tuple[int, ...]](), list[torch.Tensor]()
    for length in PROMPT_TOKENS:
        count = max(1, min(length, longest - 1))
        ids = [int(token) for token in torch.randint(most, (count,), generator=draw)]
        prompts.append(tuple(ids))
        rows = list[torch.Tensor]()
        for _ in range(min(ANSWER_TOKENS, longest - count)):
            given = torch.tensor([ids], device=model.device)
            row = model(input_ids=given, use_cache=False).logits[0, -1].float().cpu()
            rows.append(row)
            ids.append(int(row.argmax()))
        answers.append(tuple(ids[count:]))
        kept.append(torch.stack(rows))
    bound = EXACT_BOUND if model.dtype == torch.float32 else ROUNDED_BOUND
    return Reference(tuple(prompts), tuple(answers), tuple(kept), bound)
