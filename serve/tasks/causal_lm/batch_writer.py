"""Writes answers together: takes jobs that wait into a batch, chooses tokens, and ends answers."""

import collections
import contextlib
from collections.abc import Callable, Sequence

import torch

from serve.batching.client import DeadlineError
from serve.engines.generating.adapters import AdapterSlots
from serve.engines.generating.token_batch import Prompt, TokenBatch
from serve.tasks.causal_lm import sampling
from serve.tasks.causal_lm.writing import Row, WritingJob

READ_EVERY = 4
"""Steps after which prompts are read, where a step takes milliseconds: several share a reading."""
Tokens = Callable[[], list[int]]
"""Waits for the tokens of all rows."""


class BatchWriter:
    """The answers that are being written, and the prompts that are being read."""

    def __init__(
        self,
        batch: TokenBatch,
        begin: Callable[[WritingJob], Row],
        end: Callable[..., None],
        held: Callable[[], contextlib.AbstractContextManager[None]],
        adapters: AdapterSlots | None = None,
    ) -> None:
        """Args: the batch, what makes a job's row, and what ends a job, with an error or without.

        `end` is called once for each job that was taken. The pieces of a step are written inside of
        `held`. `adapters` are those of the model's layers.
        """
        self._batch, self._row_of, self._held = batch, begin, held
        self._report, self._adapters = end, adapters
        self._rows: list[Row] = []
        self._logits = torch.empty(0)
        """Of the next token of each row, on the model's device."""
        self._reading: list[tuple[WritingJob, Prompt]] = []
        self._steps = 0
        """Calls of `advance` since prompts were read."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is written or read."""
        return not self._rows and not self._reading

    @property
    def count(self) -> int:
        """Answers that are written, or whose prompts are read."""
        return len(self._rows) + len(self._reading)

    @property
    def use(self) -> float:
        """Share of the cache that they may fill."""
        return self._batch.use

    @property
    def _is_shared(self) -> bool:
        """Whether all rows select their tokens together."""
        return all(row.job.sampler.is_shared for row in self._rows)

    def take(self, waiting: "collections.deque[WritingJob | None]", most: int) -> None:
        """Takes the next jobs that have room out of those that wait, until there are `most`."""
        while waiting and (job := waiting[0]) is not None:
            if not job.is_over:
                if self.count >= most and self.count:
                    return
                try:
                    prompt = self._begin(job)
                except Exception as error:  # noqa: BLE001 - such as of a text that never fits
                    self._end(job, error)
                else:
                    if prompt is None:
                        return
                    job.has_begun = True
                    self._reading.append((job, prompt))
            else:
                self._end_waiting(job)
            waiting.popleft()

    def _begin(self, job: WritingJob) -> Prompt | None:
        """Gives a job its adapter and its place; None while one of them is not free."""
        if self._adapters is not None and job.adapter is not None:
            job.held = self._adapters.hold(job.adapter)
            if job.held is None:
                return None
        prompt = self._batch.begin(job.ids, job.most_tokens, job.held)
        if prompt is None:
            self._release(job)
        return prompt

    def _release(self, job: WritingJob) -> None:
        if self._adapters is not None and job.held is not None:
            self._adapters.release(job.held)
            job.held = None

    def _end(self, job: WritingJob, error: Exception | None = None) -> None:
        self._release(job)
        self._report(job, error)

    def advance(self) -> int:
        """Adds a token to each row, and reads the next tokens of prompts; returns their number.

        Where the batch looks ahead, a step begins before the host has seen the tokens of the step
        before. An answer that ended there takes part in it for nothing.
        """
        rows = list(self._rows)
        chosen, tokens = self._choose() if rows else (torch.empty(0), list[int])
        ahead = self._batch.looks_ahead and self._is_shared
        if not ahead:
            chosen = self._added(rows, tokens(), chosen)
        if self._rows:  # a row without a token has ended, and is still in a step that looks ahead
            self._logits = self._batch.step(chosen.clamp(min=0))
        else:
            self._logits = self._logits[:0]
        read = self._read()
        if ahead:
            self._logits = self._added(rows, tokens(), self._logits)
        return len(rows) + read

    def fail(self, error: Exception) -> None:
        """Ends all jobs with an error, and empties the batch."""
        for job in (*(row.job for row in self._rows), *(job for job, _ in self._reading)):
            self._end(job, error)
        self._rows, self._reading = [], []
        self._batch.clear()

    def _choose(self) -> tuple[torch.Tensor, Tokens]:
        """Returns the next token of each row, on the device and, once they are waited for, here."""
        chosen = sampling.shared([row.job.sampler for row in self._rows], self._logits)
        if self._is_shared:
            return chosen, _later(chosen)
        tokens: list[int] = chosen.tolist()
        for place, row in enumerate(self._rows):
            if not row.job.sampler.is_shared:
                tokens[place] = row.select(self._logits[place], tokens[place])
        return sampling.on_device(tokens, chosen.device), lambda: tokens

    def _added(
        self, rows: Sequence[Row], tokens: Sequence[int], values: torch.Tensor
    ) -> torch.Tensor:
        """Adds the next tokens, and takes the answers that have ended out of the batch.

        Returns what the others have of `values` of all rows of the batch.
        """
        with self._held():
            for row, token in zip(rows, tokens, strict=True):
                if not row.has_ended:
                    row.add(token)
            return self._left(values)

    def _read(self) -> int:
        """Reads prompts, and adds the rows of those that are complete; returns the tokens."""
        self._drop_those_over()
        self._steps += 1
        waits = self._batch.looks_ahead and self._rows and self._steps < READ_EVERY
        if not self._reading or waits:
            return 0
        self._steps = 0
        prompts = [prompt for _, prompt in self._reading]
        before = sum(prompt.read - prompt.taken_over for prompt in prompts)
        try:
            complete, logits = self._batch.read(prompts)
        except Exception as error:  # noqa: BLE001 - given to these clients; the others continue
            for job, _ in self._reading:
                self._end(job, error)
            self._batch.drop(prompts)
            self._reading = []
            return 0
        jobs = {id(prompt): job for job, prompt in self._reading}
        self._rows += [self._row_of(jobs[id(prompt)]) for prompt in complete]
        self._reading = [each for each in self._reading if each[1] not in complete]
        self._logits = torch.cat([self._logits.to(logits), logits]) if complete else self._logits
        return sum(prompt.read - prompt.taken_over for prompt in prompts) - before

    def _drop_those_over(self) -> None:
        """Ends the prompts whose clients have left, or whose time is over."""
        over = [each for each in self._reading if each[0].is_over]  # asked once: time goes on
        self._reading = [each for each in self._reading if each not in over]
        for job, prompt in over:
            self._batch.drop([prompt])
            self._end_waiting(job)

    def _left(self, values: torch.Tensor) -> torch.Tensor:
        """Takes the answers that have ended out of the batch; returns the others' values."""
        have_ended = [row.has_ended for row in self._rows]  # asked once: time goes on
        for row, has_ended in zip(self._rows, have_ended, strict=True):
            if has_ended:
                if row.failure is None:
                    row.finish()
                self._end(row.job, row.failure)
        if not any(have_ended):
            return values
        places = [place for place, has_ended in enumerate(have_ended) if not has_ended]
        self._rows = [self._rows[place] for place in places]
        self._batch.keep(places)
        return values[sampling.on_device(places, values.device)]

    def _end_waiting(self, job: WritingJob) -> None:
        self._end(job, None if job.is_cancelled.is_set() else DeadlineError())


def _later(tokens: torch.Tensor) -> Tokens:
    """Begins to copy tokens to the host; the function that it returns waits for them."""
    if not tokens.is_cuda:
        return tokens.tolist
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[int]:
        copied.synchronize()
        return host.tolist()

    return wait
