"""The `TaskEndpoint` of encoder-decoder models."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastapi

from jobs.spec.quantities import format_metric
from serve.config import ReplicaConfig
from serve.http.handler import Handler
from serve.tasks.answers import Answer, Prediction
from serve.tasks.comparison import ComparedMetric, Comparison, compare_perplexities
from serve.tasks.endpoint import SendRequest, TaskEndpoint
from serve.tasks.request_bodies import fitting, grouped
from serve.tasks.seq2seq.schemas import LONGEST_TEXT, PATH
from serve.version import ModelVersion

TEXTS_PER_REQUEST = 8
CHANGES = ("rougeL", "bleu", "chrf", "exact_match")
"""Metrics of written text whose change a gate may bound, where both versions were judged by it."""


class WriterEndpoint(TaskEndpoint):
    """Serves encoder-decoder models at `/generate`."""

    path = PATH
    title = "Models that write text"

    def load(self, config: ReplicaConfig) -> Handler:
        """Starts a model; raises CheckpointError or DeployError."""
        from serve.tasks.seq2seq.handler import WriterHandler  # imports torch and transformers

        return WriterHandler(config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of an encoder-decoder model."""
        from serve.tasks.seq2seq import routes

        return routes.api

    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns requests with a text each, or with lists of them."""
        inputs: list[Any] = list(texts)
        if per_request > 1:
            inputs = [
                [inputs[(first + place) % len(inputs)] for place in range(per_request)]
                for first in range(0, len(inputs), per_request)
            ]
        return [{"inputs": each, "max_new_tokens": tokens} for each in inputs]

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Lists of texts."""
        groups = grouped(inputs, TEXTS_PER_REQUEST, options)
        return [{"inputs": group, **options} for group in groups]

    def predictions(self, reply: Any) -> list[Prediction]:
        """A text for each input."""
        return [Answer(row["text"], row["finish_reason"]) for row in reply]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares what both versions write for the old version's evaluation rows.

        The metrics are those that each version had on its own evaluation rows.
        """
        texts = self.evaluation_texts(old)
        if not texts:
            return None, ()
        answers = [
            [row["text"] for body in self.questions(texts, {}) for row in send(version, body)]
            for version in (old, new)
        ]
        return compare(answers[0], answers[1], old.metrics, new.metrics), texts

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Returns the texts of a version's evaluation rows, without the prefix."""
        from jobs.training import eval_sample  # imports torch

        folder = Path(version.path)
        rows = eval_sample.read(folder)
        prefix = prefix_of(folder) if rows else ""
        texts = [text.removeprefix(prefix) for row in rows for text in row.texts]
        return [fitting(text, LONGEST_TEXT) for text in texts]  # more than a model reads of them


ENDPOINT = WriterEndpoint()


def prefix_of(folder: Path) -> str:
    """Returns the text that a published model has before each input."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("prefix") or ""


def compare(
    old: Sequence[str],
    new: Sequence[str],
    old_metrics: Mapping[str, float],
    new_metrics: Mapping[str, float],
) -> Comparison:
    """Compares the texts of two versions, and the metrics that both have."""
    share = sum(a == b for a, b in zip(old, new, strict=True)) / max(1, len(old))
    sentence = f"it writes the old version's text for {share:.1%} of {len(old)} inputs"
    metrics = {"agreement": ComparedMetric(share, sentence)}
    both = old_metrics.keys() & new_metrics.keys()
    if "perplexity" in both and old_metrics["perplexity"]:
        pair = old_metrics["perplexity"], new_metrics["perplexity"]
        metrics |= compare_perplexities(*pair).metrics
    for name in (name for name in CHANGES if name in both):
        before, after = old_metrics[name], new_metrics[name]
        shown = f"its {name} is {format_metric(after)}, and the old one's {format_metric(before)}"
        metrics[name] = ComparedMetric(after - before, shown)
    return Comparison(f"{share:.1%} of texts are the same", metrics)
