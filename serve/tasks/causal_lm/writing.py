"""Answers that wait to be written, and those that are being written."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from serve.batching.client import NonFiniteScoresError
from serve.engines.generating.adapters import Adapter, HeldAdapter
from serve.tasks.causal_lm import sampling
from serve.tasks.causal_lm.answer import Piece, Settings, Writer
from serve.tasks.causal_lm.sampling import Sampler
from serve.tasks.generating.thread import Job


@dataclass(slots=True, eq=False)
class WritingJob(Job):
    """A request for one answer."""

    ids: list[int]
    settings: Settings
    sampler: Sampler
    on_piece: Callable[[Piece | Exception], None]
    adapter: Adapter | None = None
    has_begun: bool = field(default=False, init=False)
    """Whether it waits no more."""
    held: HeldAdapter | None = field(default=None, init=False)
    """Its adapter in the memory of the model's device."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt, and most tokens of the answer."""
        return len(self.ids) + self.settings.most_tokens

    def fail(self, error: Exception) -> None:
        """Raises an error in `write`."""
        self.on_piece(error)


@dataclass(slots=True, eq=False)
class Row:
    """An answer that is being written."""

    job: WritingJob
    writer: Writer
    failure: Exception | None = field(default=None, init=False)

    @property
    def has_ended(self) -> bool:
        """Whether no further token is asked for."""
        return self.failure is not None or self.writer.has_ended or self.job.is_over

    def select(self, logits: torch.Tensor, likeliest: int) -> int:
        """Returns the next token, from logits (vocabulary,); an error ends this answer alone."""
        try:
            return self.job.sampler.select(logits, (self.job.ids, self.writer.ids))
        except Exception as error:  # noqa: BLE001 - given to this client; the others continue
            self.failure = error
            return likeliest

    def add(self, token: int) -> None:
        """Adds the next token; an error ends this answer alone."""
        sampler = self.job.sampler
        if token == sampling.NO_TOKEN:
            self.failure = NonFiniteScoresError("the model's logits are not numbers")
            return
        try:
            self.writer.put(token, sampler.accept(token), is_complete=sampler.is_complete)
        except Exception as error:  # noqa: BLE001 - given to this client; the others continue
            self.failure = error

    def finish(self) -> None:
        """Sends the last piece; an error ends this answer otherwise."""
        try:
            self.writer.finish()
        except Exception as error:  # noqa: BLE001 - given to this client; the others continue
            self.failure = error
