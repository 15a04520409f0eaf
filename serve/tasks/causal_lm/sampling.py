"""Selects the next token of an answer from a model's logits, as transformers' `generate` does."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from serve.tasks.causal_lm.answer import Settings

OBEYED = {
    *("do_sample", "temperature", "top_p", "top_k", "repetition_penalty"),
    *("max_length", "max_new_tokens", "eos_token_id", "bos_token_id", "pad_token_id"),
    *("transformers_version", "use_cache"),
}
"""Settings of `generate` that a sampler obeys, or that an endpoint sets in each request."""


def is_usual(config: Any) -> bool:
    """Returns whether a generation config has nothing that a sampler would pass over."""
    given = config.to_diff_dict().items()
    names = {name for name, value in given if value not in (None, False) and name[0] != "_"}
    return names <= OBEYED


class Sampler:
    """Selects the tokens of one answer."""

    def __init__(self, settings: Settings, config: Any, device: torch.device) -> None:
        """Args: the answer's settings, the model's generation config, and the logits' device."""
        self._settings = settings
        self._steps: list[Any] = []
        penalty = config.repetition_penalty
        if penalty is not None and penalty != 1:
            self._steps.append(transformers.RepetitionPenaltyLogitsProcessor(float(penalty)))
        self._is_drawn = settings.temperature > 0
        if self._is_drawn and settings.temperature != 1:
            self._steps.append(transformers.TemperatureLogitsWarper(float(settings.temperature)))
        if self._is_drawn and settings.top_p < 1:
            self._steps.append(transformers.TopPLogitsWarper(float(settings.top_p)))
        self._draw = None
        if self._is_drawn and settings.seed is not None:
            self._draw = torch.Generator(device).manual_seed(settings.seed)

    @property
    def is_plain(self) -> bool:
        """Whether the most likely token is always selected."""
        return not self._steps and not self._is_drawn

    def select(self, logits: torch.Tensor, ids: Sequence[int]) -> int:
        """Returns the next token behind the tokens of prompt and answer.

        `logits` are (vocabulary,) in fp32.
        """
        scores = logits[None]
        if self._steps:
            known = torch.tensor([ids], device=logits.device)
            for step in self._steps:
                scores = step(known, scores)
        if not self._is_drawn:
            return int(scores.argmax())
        chances = scores.softmax(dim=1)
        return int(torch.multinomial(chances, 1, generator=self._draw))
