"""The `TaskEndpoint` of classifiers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi

from serve.batching.client import InferenceClient
from serve.batching.rows import Tokenizer
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.metrics import Metrics
from serve.http.open_inference import MAX_CHARACTERS
from serve.tasks.answers import Label, Prediction
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.endpoint import SendRequest, TaskEndpoint
from serve.tasks.request_bodies import fitting, grouped
from serve.tasks.text_classification.schemas import PATH
from serve.version import ModelVersion

if TYPE_CHECKING:
    from jobs.training.eval_sample import SampleRow
    from serve.tasks.text_classification.handler import ClassificationHandler

CHANCE = 1.96
"""Standard deviations above which a difference is significant (two-sided, 5 %)."""
TEXTS_PER_REQUEST = 32
FEWEST_BODIES, INPUTS = 8, 512
"""Fewest distinct request bodies of a load test, and about how many inputs they have together."""


class ClassificationEndpoint(TaskEndpoint):
    """Serves classifiers at `/predict`."""

    path = PATH
    title = "Classifiers"
    is_exportable = True

    def handler(self) -> "type[ClassificationHandler]":
        """Returns the handler's class, whose module imports torch and transformers."""
        from serve.tasks.text_classification.handler import ClassificationHandler

        return ClassificationHandler

    def load(self, config: ReplicaConfig) -> "ClassificationHandler":
        """Starts a warm classifier; raises CheckpointError or DeployError."""
        from serve.tasks.text_classification import handler

        return handler.load_as(self.handler(), config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a classifier."""
        from serve.tasks.text_classification import routes

        return routes.api

    def in_frontend(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> "ClassificationHandler":
        """Returns a frontend worker's handler, which gets its scores from the replica."""
        return self.handler()(config, choice, client, metrics)

    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns predict requests with a text or a pair each, or with lists of them."""
        inputs: list[Any] = list(texts)
        if model.get("is_pair"):
            others = [*texts[1:], *texts[:1]]
            inputs = [{"text": a, "text_pair": b} for a, b in zip(texts, others, strict=True)]
        if per_request > 1:
            count = max(FEWEST_BODIES, INPUTS // per_request)
            inputs = [
                [inputs[(first + i) % len(inputs)] for i in range(per_request)]
                for first in range(0, count * per_request, per_request)
            ]
        return [{"inputs": each} for each in inputs]

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Lists of texts, or of pairs: tuples of two or `{"text": …, "text_pair": …}`."""
        groups = grouped([_item(each) for each in inputs], TEXTS_PER_REQUEST, options)
        return [{"inputs": group, **options} for group in groups]

    def predictions(self, reply: Any) -> list[Prediction]:
        """A label for each input; with `top_k` a tuple of labels."""
        return [
            tuple(_label(each) for each in row) if isinstance(row, list) else _label(row)
            for row in reply
        ]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the labels that both versions give the old version's evaluation rows.

        Returns None for models of pairs and for versions with different labels.
        """
        right, texts = evaluation(old)
        if not texts or old.labels != new.labels:
            return None, ()
        answers = [self._labels(version, texts, send) for version in (old, new)]
        return compare(answers[0], answers[1], right), texts

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Returns the texts of a version's evaluation rows; empty for a model of pairs."""
        return evaluation_rows(version)[1]

    def answers(
        self, version: ModelVersion, texts: Sequence[str], send: SendRequest
    ) -> list[Prediction]:
        """Returns a version's prediction for each text, asked for in lists; raises DeployError."""
        replies = [send(version, body) for body in self.questions(texts, {})]
        return [each for reply in replies for each in self.predictions(reply)]

    def _labels(self, version: ModelVersion, texts: Sequence[str], send: SendRequest) -> list[str]:
        found = self.answers(version, texts, send)
        return [each.label for each in found if isinstance(each, Label)]


ENDPOINT = ClassificationEndpoint()


def evaluation(version: ModelVersion) -> tuple[list[str], list[str]]:
    """Returns the labels and the texts of a version's evaluation rows; empty for a model of pairs.

    Versions that stored token ids without texts get their texts by decoding.
    """
    rows, texts = evaluation_rows(version)
    return [version.labels[row.label] for row in rows if isinstance(row.label, int)], texts


def evaluation_rows(version: ModelVersion) -> tuple[Sequence["SampleRow"], list[str]]:
    """Returns a version's evaluation rows and their texts; empty for a model of pairs.

    Texts are cut to the longest that endpoints take, which is more than a model reads of them.
    """
    from jobs.training import eval_sample  # imports torch

    rows = eval_sample.read(Path(version.path))
    if not rows or version.is_pair:
        return [], []
    texts = [text for row in rows for text in row.texts]
    if not texts:
        tokenizer = Tokenizer(Path(version.path), version.max_length)
        texts = tokenizer.texts([row.ids for row in rows])
    return rows, [fitting(text, MAX_CHARACTERS) for text in texts]


def _item(given: Any) -> Any:
    """An input as the endpoint takes it."""
    if isinstance(given, tuple) and len(given) == 2:
        return {"text": given[0], "text_pair": given[1]}
    return dict(given) if isinstance(given, Mapping) else given


def _label(row: Any) -> Label:
    return Label(row["label"], row["score"])


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Counts of the labels that two versions give the same labelled texts."""

    rows: int
    agreeing: int
    """Rows with the same label from both versions."""
    only_old_right: int
    only_new_right: int

    @property
    def change(self) -> float:
        """Accuracy of the new version minus the accuracy of the old one."""
        return (self.only_new_right - self.only_old_right) / self.rows if self.rows else 0.0

    @property
    def is_chance(self) -> bool:
        """True if the change in accuracy is not significant.

        Source: McNemar's test, in its normal approximation.
        """
        differing = self.only_old_right + self.only_new_right
        difference = abs(self.only_old_right - self.only_new_right)
        return difference <= CHANCE * math.sqrt(differing)

    def comparison(self) -> Comparison:
        """Returns the metrics `accuracy` and `agreement` for the rules of a gate."""
        if not self.rows:
            return Comparison("no evaluation rows", {})
        share = self.agreeing / self.rows
        change = f"its accuracy changes by {self.change:+.3f} on {self.rows} texts"
        same = f"it gives {share:.1%} of {self.rows} texts the old version's label"
        metrics = {
            "accuracy": ComparedMetric(self.change, change, self.is_chance),
            "agreement": ComparedMetric(share, same),
        }
        return Comparison(f"accuracy {self.change:+.3f}", metrics)


def compare(old: Sequence[str], new: Sequence[str], right: Sequence[str]) -> Comparison:
    """Compares the labels of two versions, given the right labels of the same texts."""
    rows = list(zip(old, new, right, strict=True))
    counts = LabelCounts(
        rows=len(rows),
        agreeing=sum(a == b for a, b, _ in rows),
        only_old_right=sum(a == c != b for a, b, c in rows),
        only_new_right=sum(b == c != a for a, b, c in rows),
    )
    return counts.comparison()
