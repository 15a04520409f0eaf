"""What every engine does, and how one was chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jobs.spec.serve import EngineName
from jobs.spec.task import Activation
from serve.batching.rows import Logits, PendingBatch, Row

Shape = tuple[int, int]
"""Rows and padded tokens of a batch."""


def softmax(logits: Logits) -> Logits:
    """Probabilities as [rows, labels]."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Logits = raised / raised.sum(axis=1, keepdims=True)
    return found


def sigmoid(logits: Logits) -> Logits:
    """Independent probabilities as [rows, labels]."""
    found: Logits = np.reciprocal(1 + np.exp(-logits))
    return found


ACTIVATIONS: Mapping[Activation, Callable[[Logits], Logits]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "identity": lambda logits: logits,
}
"""What makes scores of logits, for tasks whose rows have scores of their own."""


class Engine(Protocol):
    """A loaded model on one device."""

    name: EngineName
    is_packed: bool
    """Whether a batch costs as many tokens as its rows have, whatever their lengths."""

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Lay a batch out, and begin with it where that goes on by itself."""
        ...

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]; a row's do not depend on its neighbours beyond rounding."""
        ...


class OneByOne:
    """Runs each row by itself, for a model whose scores change with the rows beside it."""

    is_packed = False

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Compute all rows when the logits are asked for."""
        return lambda: self.run(rows)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]."""
        found: Logits = np.concatenate([self._engine.run([row]) for row in rows])
        return found


@dataclass(frozen=True, slots=True)
class EngineResult:
    """How one engine did."""

    engine: EngineName
    refusal: str = ""
    """Why it may not serve; empty when it may."""
    texts_per_s: float = 0.0
    """Of gate rows while many wait; in plain batches where it was too slow to be timed further."""
    alone_ms: float | None = None
    """Median time of one row by itself; None where it was not timed."""
    batch_tokens: int = 256
    """Padded tokens of a batch at which it was fastest."""
    agreement: float = 1.0
    """Share of rows with the expected label, near ties left out."""
    accuracy: float | None = None
    """On the gate rows; None where it could not be made."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that serves, and every one it was chosen from."""

    engine: EngineName
    batch_tokens: int
    texts_per_s: float
    trials: tuple[EngineResult, ...] = ()
    is_one_by_one: bool = False
    """Whether rows are run by themselves, because every engine fails in batches."""
