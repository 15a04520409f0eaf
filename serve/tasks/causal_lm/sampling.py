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
WITHOUT_EFFECT = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("length_penalty", "typical_p", "encoder_repetition_penalty"), 1.0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "min_p", "diversity_penalty"), 0.0),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), 0),
}
"""Values of other settings that change nothing."""


def unusual(config: Any) -> str:
    """Returns which settings of a generation config a sampler would pass over; empty if none."""
    names = [
        name
        for name, value in config.to_diff_dict().items()
        if value not in (None, False, WITHOUT_EFFECT.get(name)) and name[0] != "_"
    ]
    found = ", ".join(sorted(set(names) - OBEYED))
    return f"generation_config.json sets {found}" if found else ""


class Sampler:
    """Selects the tokens of one answer."""

    def __init__(self, settings: Settings, config: Any, device: torch.device) -> None:
        """Args: the answer's settings, the model's generation config, and the logits' device."""
        self._settings = settings
        self._steps: list[Any] = []
        self._penalty = None
        penalty = config.repetition_penalty
        if penalty is not None and penalty != 1:
            self._penalty = transformers.RepetitionPenaltyLogitsProcessor(float(penalty))
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
        return self._penalty is None and not self._is_drawn

    def select(self, logits: torch.Tensor, ids: tuple[Sequence[int], Sequence[int]]) -> int:
        """Returns the next token behind the tokens of a prompt and of its answer.

        `logits` are (vocabulary,) in fp32.
        """
        scores = logits[None]
        if self._penalty is not None:
            known = torch.tensor([[*ids[0], *ids[1]]], device=logits.device)
            scores = self._penalty(known, scores)
        for step in self._steps:  # they do not look at the tokens before
            scores = step(None, scores)
        if not self._is_drawn:
            return int(scores.argmax())
        chances = scores.softmax(dim=1)
        return int(torch.multinomial(chances, 1, generator=self._draw))
