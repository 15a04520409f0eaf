"""Selects the next token of an answer from a model's logits, as a request asks for."""

import collections
import functools
from collections.abc import Collection, Sequence
from typing import Any

import torch
import transformers

from serve.tasks.causal_lm.answer import Settings, TokenLogprob
from serve.tasks.causal_lm.vocabulary import OUTSIDE, Matcher

OBEYED = {
    *("do_sample", "temperature", "top_p", "top_k", "repetition_penalty"),
    *("max_length", "max_new_tokens", "eos_token_id", "bos_token_id", "pad_token_id"),
    *("transformers_version", "use_cache"),
}
"""Settings of `generate` that a sampler obeys, or that an endpoint sets in each request."""
NO_TOKEN = -1
"""Stands for the token of a row whose logits are not numbers."""
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

    def __init__(
        self,
        settings: Settings,
        config: Any,
        device: torch.device,
        *,
        ends: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> None:
        """Args: the answer's settings, and the model's generation config.

        `device` holds the logits. The tokens in `ends` end the answer. `matcher` follows it through
        the grammar of the settings.
        """
        self._settings, self._matcher, self._ends = settings, matcher, sorted(ends)
        penalty = settings.repetition_penalty or config.repetition_penalty or 1.0
        self._penalty = None
        if penalty != 1:
            self._penalty = transformers.RepetitionPenaltyLogitsProcessor(float(penalty))
        self.is_drawn = settings.temperature > 0
        """Whether tokens are drawn; else the most likely one is selected."""
        self._steps = _steps(settings) if self.is_drawn else []
        self._draw = None
        if self.is_drawn and settings.seed is not None:
            self._draw = torch.Generator(device).manual_seed(settings.seed)
        self._logprobs: torch.Tensor | None = None

    @functools.cached_property
    def is_shared(self) -> bool:
        """Whether tokens depend on nothing but the logits, so that rows select theirs together."""
        own = self._settings
        changes = (own.frequency_penalty, own.presence_penalty, own.logit_bias, own.min_tokens)
        is_constrained = self._penalty is not None or self._matcher is not None
        is_own = self._draw is not None or own.logprobs is not None
        return not (is_own or is_constrained or any(changes))

    @property
    def chances(self) -> tuple[float, ...]:
        """What the chances of tokens depend on beside the logits; empty if none is drawn."""
        own = self._settings
        return (own.temperature, own.top_k, own.top_p, own.min_p) if self.is_drawn else ()

    def changed(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns logits (rows, vocabulary) with the chances of the settings."""
        for step in self._steps:  # they do not look at the tokens before
            scores = step(None, scores)
        return scores

    @property
    def is_complete(self) -> bool:
        """Whether the answer is all that its grammar lets it be."""
        return self._matcher is not None and self._matcher.is_complete

    def select(self, logits: torch.Tensor, ids: tuple[Sequence[int], Sequence[int]]) -> int:
        """Returns the next token behind the tokens of a prompt and of its answer.

        `logits` are (vocabulary,) in fp32.

        Raises:
            GrammarError: if the grammar has become too complex.
        """
        scores = self.scores(logits[None], ids)
        if not self.is_drawn:
            return int(scores.argmax())
        chances = scores.softmax(dim=1)
        return int(torch.multinomial(chances, 1, generator=self._draw))

    def scores(
        self, logits: torch.Tensor, ids: tuple[Sequence[int], Sequence[int]]
    ) -> torch.Tensor:
        """Returns logits (1, vocabulary) with everything that the settings ask for."""
        own, (_, answer) = self._settings, ids
        if own.logprobs is not None:
            self._logprobs = logits[0].float().log_softmax(dim=0)
        scores = self._penalised(logits, ids)
        if len(answer) < own.min_tokens and self._ends:
            scores = scores.index_fill(1, _tensor(self._ends, scores), OUTSIDE)
        if self._matcher is not None:
            scores = self._matcher.constrain(scores)
        return self.changed(scores)

    def accept(self, token: int) -> TokenLogprob | None:
        """Takes the token that was selected; returns its log-probability if these are asked for.

        It is the model's own, before any setting; so are those of the likeliest tokens.
        """
        if self._matcher is not None and token not in self._ends:
            self._matcher.accept(token)
        if self._logprobs is None:
            return None
        values, tokens = self._logprobs.topk(self._settings.logprobs or 0)
        likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        return TokenLogprob(token, float(self._logprobs[token]), likeliest)

    def _penalised(
        self, scores: torch.Tensor, ids: tuple[Sequence[int], Sequence[int]]
    ) -> torch.Tensor:
        own, (prompt, answer) = self._settings, ids
        if own.logit_bias:
            tokens, values = zip(*own.logit_bias, strict=True)
            added = torch.tensor([values], device=scores.device, dtype=scores.dtype)
            scores = scores.index_add(1, _tensor(tokens, scores), added)
        if self._penalty is not None:
            scores = self._penalty(_tensor([*prompt, *answer], scores)[None], scores)
        if answer and (own.frequency_penalty or own.presence_penalty):
            counts = torch.bincount(_tensor(answer, scores), minlength=scores.shape[1])
            has_occurred = (counts > 0).to(scores.dtype)
            scores = scores - own.frequency_penalty * counts - own.presence_penalty * has_occurred
        return scores


def shared(samplers: Sequence[Sampler], logits: torch.Tensor) -> torch.Tensor:
    """Selects a token of each row from logits (rows, vocabulary), on their device.

    Rows whose tokens depend on more than the logits get the likeliest one, and those whose logits
    are not numbers NO_TOKEN. The host waits for nothing, as it would in `torch.multinomial`.
    """
    tokens = logits.argmax(dim=1)
    alike = collections.defaultdict[tuple[float, ...], list[int]](list)
    for place, sampler in enumerate(samplers):
        if sampler.is_drawn and sampler.is_shared:
            alike[sampler.chances].append(place)
    for places in alike.values():
        index = on_device(places, logits.device)
        scores = logits if len(places) == len(samplers) else logits[index]
        chances = samplers[places[0]].changed(scores).softmax(dim=1)
        drawn = (chances / torch.empty_like(chances).exponential_()).argmax(dim=1)
        tokens = tokens.index_copy(0, index, drawn)
    return tokens.where(~logits.isnan().any(dim=1), NO_TOKEN)


def on_device(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Returns numbers on a device, without waiting for what it still does."""
    host = torch.tensor(values, dtype=torch.int64)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def _steps(settings: Settings) -> list[Any]:
    """Returns what changes the chances of tokens before one is drawn, in transformers' order."""
    steps: list[Any] = []
    if settings.temperature != 1:
        steps.append(transformers.TemperatureLogitsWarper(float(settings.temperature)))
    if settings.top_k > 0:
        steps.append(transformers.TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        steps.append(transformers.TopPLogitsWarper(float(settings.top_p)))
    if settings.min_p > 0:
        steps.append(transformers.MinPLogitsWarper(float(settings.min_p)))
    return steps


def _tensor(ids: Sequence[int], beside: torch.Tensor) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=beside.device)
