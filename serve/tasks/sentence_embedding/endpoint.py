"""The `TaskEndpoint` of sentence embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi
import numpy as np
import numpy.typing as npt

from jobs.errors import RequestError
from jobs.spec.task import Z95, fisher_noise
from serve.batching.client import InferenceClient
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.metrics import Metrics
from serve.http.open_inference import MAX_CHARACTERS
from serve.tasks.answers import Vector
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.endpoint import SendRequest, TaskEndpoint
from serve.tasks.request_bodies import fitting, grouped
from serve.tasks.sentence_embedding.schemas import PATH
from serve.version import ModelVersion

if TYPE_CHECKING:
    from serve.tasks.sentence_embedding.handler import EmbeddingHandler

TEXTS_PER_REQUEST = 32
FEWEST_BODIES, INPUTS = 8, 512
"""Fewest distinct request bodies of a load test, and about how many texts they have together."""
Vectors = npt.NDArray[np.float32]


class EmbeddingEndpoint(TaskEndpoint):
    """Serves vectors of texts at `/embeddings`."""

    path = PATH
    title = "Sentence embeddings"

    def __init__(self, *, is_scored: bool = False) -> None:
        """Args: whether evaluation rows have scores, and not positives."""
        self._is_scored = is_scored

    def load(self, config: ReplicaConfig) -> "EmbeddingHandler":
        """Starts a warm model; raises CheckpointError or DeployError."""
        from serve.tasks.sentence_embedding import handler  # imports torch and transformers

        return handler.load(config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of sentence embeddings."""
        from serve.tasks.sentence_embedding import routes

        return routes.api

    def in_frontend(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> "EmbeddingHandler":
        """Returns a frontend worker's handler, which gets its vectors from the replica."""
        from serve.tasks.sentence_embedding import handler

        return handler.EmbeddingHandler(config, choice, client, metrics)

    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns requests with a text each, or with lists of them."""
        if per_request == 1:
            return [{"input": text} for text in texts]
        count = max(FEWEST_BODIES, INPUTS // per_request)
        return [
            {"input": [texts[(first + number) % len(texts)] for number in range(per_request)]}
            for first in range(0, count * per_request, per_request)
        ]

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Lists of texts."""
        if options.get("encoding_format", "float") != "float":
            raise RequestError("predictions are numbers; leave encoding_format out")
        groups = grouped(inputs, TEXTS_PER_REQUEST, options)
        return [{"input": group, **options} for group in groups]

    def predictions(self, reply: Any) -> list[Vector]:
        """A vector for each text, as a tuple of numbers."""
        return [tuple(map(float, each["embedding"])) for each in reply["data"]]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the vectors that both versions give the old version's evaluation rows."""
        rows = evaluation(old)
        if rows is None:
            return None, ()
        texts = [text for role in rows.texts for text in role]
        found = [self._vectors(version, texts, send) for version in (old, new)]
        return compare(rows, found[0], found[1], is_scored=self._is_scored), rows.texts[0]

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Returns the first texts of a version's evaluation rows."""
        rows = evaluation(version)
        return rows.texts[0] if rows else ()

    def _vectors(self, version: ModelVersion, texts: Sequence[str], send: SendRequest) -> Vectors:
        found: list[Vector] = []
        for body in self.questions(texts, {}):
            found += self.predictions(send(version, body))
        return np.array(found, dtype=np.float32)


RANKED, SCORED = EmbeddingEndpoint(), EmbeddingEndpoint(is_scored=True)


@dataclass(frozen=True, slots=True)
class EvaluationRows:
    """The evaluation rows that a version was published with."""

    texts: Sequence[Sequence[str]]
    """Texts of all rows by role: anchors, positives, and perhaps negatives."""
    labels: Sequence[Any]
    """Similarity of each row's texts if they have scores."""


def evaluation(version: ModelVersion) -> EvaluationRows | None:
    """Returns the evaluation rows of a version; None if it was published without."""
    from jobs.training import eval_sample  # imports torch

    rows = eval_sample.read(Path(version.path))
    if not rows or not rows[0].texts:
        return None
    return EvaluationRows(
        texts=[
            [fitting(text, MAX_CHARACTERS) for text in role]
            for role in zip(*(row.texts for row in rows), strict=True)
        ],
        labels=[row.label for row in rows],
    )


def compare(rows: EvaluationRows, old: Vectors, new: Vectors, *, is_scored: bool) -> Comparison:
    """Compares the vectors of two versions, those of all roles one after the other.

    The metrics are the change of `spearman` for rows with scores, and of `mrr` for others, and
    `agreement`, the mean cosine between old and new vectors: if it is low, vectors that were stored
    with the old version cannot be searched with the new one.
    """
    from jobs.tasks.sentence_embedding.metrics import unit

    name = "spearman" if is_scored else "mrr"
    change, is_chance = (_change_of_spearman if is_scored else _change_of_mrr)(rows, old, new)
    sentence = f"its {name} changes by {change:+.3f} on {len(rows.texts[0])} rows"
    metrics = {name: ComparedMetric(change, sentence, is_chance)}
    if old.shape == new.shape:
        agreement = float((unit(old) * unit(new)).sum(axis=1).mean())
        same = f"its vectors have a mean cosine of {agreement:.3f} with the old version's"
        metrics["agreement"] = ComparedMetric(agreement, same)
    return Comparison(f"{name} {change:+.3f}", metrics)


def _change_of_spearman(rows: EvaluationRows, old: Vectors, new: Vectors) -> tuple[float, bool]:
    """Returns the change of Spearman's correlation, and whether chance explains it."""
    from jobs.tasks.sentence_embedding import metrics

    scores = np.array(rows.labels)
    before, after = (
        metrics.correlations(*_halves(vectors), scores)["spearman"] for vectors in (old, new)
    )
    return after - before, abs(after - before) <= fisher_noise(before, len(scores))


def _halves(vectors: Vectors) -> tuple[Vectors, Vectors]:
    """Returns the vectors of the first and of the second texts."""
    return vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :]


def _change_of_mrr(rows: EvaluationRows, old: Vectors, new: Vectors) -> tuple[float, bool]:
    """Returns the change of the mean reciprocal rank, and whether chance explains it.

    Source: the paired t-test, in its normal approximation.
    """
    from jobs.tasks.sentence_embedding import metrics
    from jobs.tasks.sentence_embedding.rows import numbers_of

    texts = numbers_of(list(zip(*rows.texts, strict=True)))
    reciprocal = []
    for vectors in (old, new):
        anchors, *others = np.split(vectors, len(rows.texts))
        reciprocal.append(1 / metrics.ranks_and_losses(anchors, others, texts, scale=1.0)[0])
    changes = reciprocal[1] - reciprocal[0]
    change = float(changes.mean())
    return change, abs(change) <= Z95 * float(changes.std()) / len(changes) ** 0.5
