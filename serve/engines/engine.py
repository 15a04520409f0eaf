"""The interface of engines, and the result of their selection."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from jobs.spec.serve import EngineName
from jobs.spec.task import PER_TOKEN, Activation, Task
from serve.batching.policy import Limits
from serve.batching.rows import Logits, PendingBatch, Row

Shape = tuple[int, int]
"""Shape of a batch: rows, and width in tokens with padding."""
WARMUP_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Widths in tokens of the rows that are run once before the first request."""


@dataclass(frozen=True, slots=True)
class Head:
    """The output of a published model."""

    auto_class: str = "AutoModelForSequenceClassification"
    """The class of transformers that loads the model."""
    is_per_token: bool = False
    """True if each token has logits of its own, and not each row."""
    is_per_hidden: bool = False
    """True if each hidden token of a row has logits of its own, over the vocabulary."""

    @classmethod
    def of(cls, task: Task) -> "Head":
        """Returns the output of a task's models."""
        is_per_hidden = task.activation == "token-loss"
        return cls(task.auto_class, task.activation in PER_TOKEN, is_per_hidden)


ROW_HEAD = Head()
"""The output of a classifier of rows."""


def softmax(logits: Logits) -> Logits:
    """Returns probabilities that sum to 1 in each row, from logits, [rows, labels] both."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Logits = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def sigmoid(logits: Logits) -> Logits:
    """Returns an independent probability for each logit, [rows, labels] both."""
    probabilities: Logits = np.reciprocal(1 + np.exp(-logits))
    return probabilities


ACTIVATIONS: Mapping[Activation, Callable[[Logits], Logits]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "identity": lambda logits: logits,
    "vector": lambda logits: logits,
    "token-softmax": softmax,
}
"""Functions from logits to scores, by the activation of a task."""


class Engine(Protocol):
    """A model on one device.

    Logits are [rows, labels]. If each token has its own, they are [tokens, labels]: those of all
    tokens of the first row, special ones included, then of the second row, and so on, without
    padding. If each hidden token has its own, they are [hidden, vocabulary], in the same order.
    """

    name: EngineName
    is_packed: bool
    """True if the engine packs rows, so that a batch costs their tokens without padding."""
    ahead: int
    """Number of batches that may be launched before an earlier one has ended."""

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Compiles the engine's graphs, if any, and returns the shapes that are to be run once.

        Args:
            lengths: Tokens of typical inputs.
            limits: Limits of a batch.
            longest: Longest input in tokens.
        """
        ...

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Prepares a batch, and starts it if the device computes asynchronously.

        Returns a function that waits for the logits.
        """
        ...

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the logits.

        Up to rounding, a row's logits must not depend on the other rows of the batch.
        """
        ...


def usual_widths(longest: int) -> list[Shape]:
    """Returns single rows of several widths, for an engine whose first run of a width is slower."""
    return [(1, width) for width in WARMUP_WIDTHS if width <= longest]


def run_s(engine: Engine, rows: Sequence[Row]) -> float:
    """Runs one batch and returns its duration in seconds."""
    begin = time.perf_counter()
    engine.run(rows)
    return time.perf_counter() - begin


class OneByOne:
    """Runs each row as its own batch, for a model whose scores depend on the rest of the batch."""

    is_packed, ahead = False, 0

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Prepares the engine for batches of one row, and returns their shapes."""
        return self._engine.prepare(lengths, replace(limits, batch_rows=1), longest)

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Returns a function that computes the logits."""
        return lambda: self.run(rows)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the logits."""
        logits: Logits = np.concatenate([self._engine.run([row]) for row in rows])
        return logits


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The result of one engine in the selection: its acceptance check and its speed."""

    engine: EngineName
    refusal: str = ""
    """Why the engine must not serve; empty if it may."""
    texts_per_s: float = 0.0
    """Throughput on the evaluation sample with a full queue; for an engine that was too slow to be
    timed further, its throughput in the acceptance check, or in the one batch that it ran."""
    alone_ms: float | None = None
    """Median time of a batch of one row; None if it was not timed."""
    batch_tokens: int = 256
    """Padded tokens of a batch with the highest throughput."""
    agreement: float = 1.0
    """Share of rows with the expected label; rows near a tie count as equal."""
    accuracy: float | None = None
    """Accuracy on the evaluation sample; None if the engine was not checked or has no labels."""
    batch_texts_per_s: float = 0.0
    """Texts per second of one batch, as large as those of the check; 0 if it was not measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected engine, with the results of all candidates."""

    engine: EngineName
    batch_tokens: int
    texts_per_s: float
    trials: tuple[EngineResult, ...] = ()
    """Results of all candidates; the field's name is stored in `choice.json`."""
    is_one_by_one: bool = False
    """True if each row is its own batch, because every engine fails the check in batches."""
