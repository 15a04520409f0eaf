"""Checks that an engine reproduces the scores of training, alone and in batches."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.spec.quantities import format_metric
from jobs.spec.serve import EngineName
from jobs.spec.task import Activation
from jobs.training import eval_sample
from serve.batching.rows import Logits, Row
from serve.engines.engine import ACTIVATIONS, Engine, EngineResult
from serve.engines.engine_factory import EngineFactory, EvalSample

ACCURACY_DROP, AGREEMENT = 0.005, 0.99
"""Acceptance check: largest loss of accuracy, and smallest share of rows with training's label."""


INVARIANCE = 0.02
"""Acceptance check: largest difference of a row's scores between a full batch and its own batch."""


TIE = 0.05
"""A row with another label counts as equal if none of its scores differs by more than this."""


CHECK_BATCH, CHECK_SINGLE = 32, 48
"""Acceptance check: rows of a batch, and number of rows that are also run one by one."""


VOCABULARY_BATCH = 8
"""Acceptance check: rows of a batch whose hidden tokens are scored with the whole vocabulary, which
takes memory."""


REFERENCE: EngineName = "torch-fp32"


def expected_scores(factory: EngineFactory, sample: EvalSample) -> Logits:
    """Returns the reference scores, [items, labels]: training's, or else those of torch in fp32.

    An item is a row; or a labelled token, if each token has scores.
    """
    if sample.scores is not None:
        return sample.scores
    engine = factory.make(REFERENCE, sample)
    batch = batch_of(sample.activation)
    return sample.items(scores(engine, sample.rows, batch, sample.activation))


def batch_of(activation: Activation) -> int:
    """Returns the rows of a batch in the acceptance check."""
    return VOCABULARY_BATCH if activation == "token-loss" else CHECK_BATCH


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """Compares an engine's scores of the evaluation sample with the reference scores.

    An engine passes if its scores are finite, its labels and its accuracy are those of training,
    and a row's scores do not depend on the other rows of its batch. Of vectors, the cosines with
    the reference vectors of all rows are compared; of hidden tokens, the mean loss of each row.
    """

    sample: EvalSample
    reference: Logits
    """Reference scores, [items, labels]."""

    def run(self, engine: Engine) -> EngineResult:
        """Checks an engine; the result has a refusal if it fails."""
        rows = self.sample.rows
        batch = batch_of(self.sample.activation)
        engine.run(rows[:batch])
        begin = time.perf_counter()
        together = scores(engine, rows, batch, self.sample.activation)
        spent_s = time.perf_counter() - begin
        alone = scores(engine, rows[:CHECK_SINGLE], 1, self.sample.activation)
        items, others, reference = self.sample.items(together), alone, self.reference
        if self.sample.activation == "vector":
            items, others, reference = (
                eval_sample.similarities(found, self.reference).astype(np.float32)
                for found in (items, alone, self.reference)
            )
        agreement = self._agreement(items, reference)
        accuracy, before = self._accuracy(items), self._accuracy(reference)
        whole = items if self.sample.tokens is None else together
        spread = float(self._differences(others, whole[: len(others)]).max())
        refusal = ""
        if not np.isfinite(together).all():
            refusal = "its scores contain NaN or infinity"
        elif agreement < AGREEMENT:
            what = "another label" if self._has_labels else "other scores"
            judged = "rows" if self.sample.tokens is None else "words in entities"
            refusal = f"it gives {1 - agreement:.1%} of the {judged} {what} than training"
        elif accuracy is not None and before is not None and before - accuracy > ACCURACY_DROP:
            shown = format_metric(accuracy), format_metric(before)
            refusal = f"its accuracy is {shown[0]}, and {shown[1]} in training"
        elif spread > INVARIANCE:
            refusal = f"a text's score changes by {spread:.3f} with the other texts of its batch"
        return EngineResult(
            engine.name,
            refusal,
            texts_per_s=len(rows) / spent_s,
            agreement=agreement,
            accuracy=accuracy,
        )

    def _agreement(self, actual: Logits, reference: Logits) -> float:
        """Returns the share of items with the reference scores, within TIE, or reference label.

        Of tokens, only those count that are not given the most frequent label by both: most are
        outside of entities, where engines hardly differ.
        """
        is_same = self._differences(actual, reference).max(axis=1) <= TIE
        if self._has_labels:
            found, expected = actual.argmax(axis=1), reference.argmax(axis=1)
            is_same |= found == expected
            if self.sample.tokens is not None:
                common = np.bincount(expected).argmax()
                is_same = is_same[(found != common) | (expected != common)]
        return float(is_same.mean()) if len(is_same) else 1.0

    def _differences(self, one: Logits, other: Logits) -> Logits:
        """Returns the differences of scores, in units of the sample's spread, [rows, labels]."""
        unit = self.sample.spread if self.sample.activation != "vector" else ()
        found: Logits = np.abs(one - other) / np.array(unit or (1.0,), np.float32)
        return found

    def _accuracy(self, actual: Logits) -> float | None:
        if not self._has_labels:
            return None
        return float((actual.argmax(axis=1) == np.array(self.sample.labels)).mean())

    @property
    def _has_labels(self) -> bool:
        """True if an item's label is the one with the highest score."""
        return self.sample.activation in ("softmax", "token-softmax")


def scores(
    engine: Engine, rows: Sequence[Row], batch: int, activation: Activation = "softmax"
) -> Logits:
    """Returns the scores of rows, run in batches of `batch` rows in their order.

    They are [rows, labels], or [tokens, labels] if each token has its own.
    """
    batches = [rows[first : first + batch] for first in range(0, len(rows), batch)]
    if activation == "token-loss":
        return np.concatenate([losses(engine.run(each), each) for each in batches])
    return ACTIVATIONS[activation](np.concatenate([engine.run(each) for each in batches]))


def losses(logits: Logits, rows: Sequence[Row]) -> Logits:
    """Returns the mean loss of the hidden tokens of each row, [rows, 1].

    Args:
        logits: Those of the hidden tokens of all rows, [hidden, vocabulary].
        rows: The rows, whose hidden tokens are known.
    """
    ends = list(itertools.accumulate(len(row.hidden) for row in rows))[:-1]
    means = []
    for row, part in zip(rows, np.split(logits, ends), strict=True):
        largest = part.max(axis=1, keepdims=True)
        sums = np.log(np.exp(part - largest).sum(axis=1)) + largest[:, 0]
        means.append((sums - part[np.arange(len(part)), np.array(row.originals)]).mean())
    return np.array(means, dtype=np.float32)[:, None]
