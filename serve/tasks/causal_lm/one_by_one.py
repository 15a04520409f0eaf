"""Lets transformers' `generate` write one answer, of a model whose rows cannot share a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
import transformers.generation.streamers

from serve.tasks.causal_lm.answer import Settings, Writer
from serve.tasks.causal_lm.sampling import Sampler

NO_TOKEN = -1
"""Of which `generate` never finds one, so that nothing ends an answer."""


def write(
    model: Any,
    ids: Sequence[int],
    settings: Settings,
    sampler: Sampler,
    writer: Writer,
    is_over: Callable[[], bool],
) -> None:
    """Writes an answer behind the tokens of a prompt, until it ends or `is_over`."""
    prompt = torch.tensor([ids], device=model.device)
    options: dict[str, Any] = {"eos_token_id": NO_TOKEN} if settings.ignores_end else {}
    if sampler.is_drawn:  # the sampler has warmed the scores
        options |= {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    if settings.repetition_penalty is not None:
        options["repetition_penalty"] = 1.0

    def scores(known: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return sampler.scores(logits, (ids, known[0, len(ids) :].tolist()))

    def must_end(known: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.full((len(known),), writer.is_stopped or is_over(), device=known.device)

    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=settings.seed is not None):
        if settings.seed is not None:  # `generate` draws with torch's own state
            torch.manual_seed(settings.seed)
        model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=sampler.is_drawn,
            max_new_tokens=settings.most_tokens,
            pad_token_id=0,  # one row has none
            streamer=_Stream(writer, sampler),
            logits_processor=transformers.LogitsProcessorList([scores]),
            stopping_criteria=transformers.StoppingCriteriaList([must_end]),
            **options,
        )


class _Stream(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
    """Hands the tokens that transformers generates to a writer."""

    def __init__(self, writer: Writer, sampler: Sampler) -> None:
        self._writer, self._sampler = writer, sampler
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Receives the prompt in the first call and one token in every further one."""
        if self._has_prompt:
            token = int(value.reshape(-1)[0])
            logprob = self._sampler.accept(token)
            self._writer.put(token, logprob, is_complete=self._sampler.is_complete)
        self._has_prompt = True

    def end(self) -> None:
        """Does nothing: the last piece is sent by who knows why the answer ended."""
