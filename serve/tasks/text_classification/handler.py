"""The handler of a text classifier: parses texts and renders their labels."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import pydantic_core

from jobs.spec.task import VARIANT_MARK
from serve.batching.client import Answer, InferenceClient
from serve.batching.rows import Text
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.errors import HttpError
from serve.http.handler import HttpResponse
from serve.http.metrics import Metrics
from serve.http.open_inference import ScoringInferHandler, Tensor, TensorInfo
from serve.tasks.text_classification import schemas
from serve.tasks.text_classification.schemas import PATH, ModelInfo, PredictRequest
from serve.version import fetched


class ClassificationHandler(ScoringInferHandler[PredictRequest]):
    """Answers requests with the label of each text."""

    path = PATH

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, choice, client, metrics)
        self._labels = list(config.version.labels)

    @property
    def info(self) -> ModelInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return ModelInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            labels=self._labels,
            metrics=version.metrics,
            engine=self.choice.engine,
            max_length=version.max_length,
            is_pair=version.is_pair,
            problem=version.task.partition(VARIANT_MARK)[2] or None,
        )

    def parse(self, body: bytes) -> tuple[PredictRequest, list[Text]]:
        """Returns the predict request in a body, and its texts; raises HttpError."""
        request = schemas.parse(body)
        return request, schemas.as_texts(request.inputs, is_pair=self.config.version.is_pair)

    def render(self, request: PredictRequest, answer: Answer) -> HttpResponse:
        """Returns the labels of a request's texts as JSON.

        Raises:
            HttpError: 422 if a text was cut and the request has `truncate: false`.
        """
        if answer.is_cut and not request.truncate:
            length = self.config.version.max_length
            message = f"an input has more tokens than the model's limit of {length}"
            raise HttpError(422, "too_long", message)
        labelled = [self.answer(scores, request) for scores in answer.scores]
        headers = self.headers_of(answer)
        if answer.is_cut:
            headers["x-truncated"] = "true"
        value = labelled if isinstance(request.inputs, list) else labelled[0]
        return HttpResponse(200, pydantic_core.to_json(value), headers)

    def tensors(self, answer: Answer) -> list[Tensor]:
        """The best label of each text, its score, and the scores of all labels."""
        count, best = len(answer.scores), [max(row) for row in answer.scores]
        labels = [
            self._labels[row.index(score)] for row, score in zip(answer.scores, best, strict=True)
        ]
        every = [score for row in answer.scores for score in row]
        return [
            Tensor(name="label", shape=[count], datatype="BYTES", data=labels),
            Tensor(name="score", shape=[count], datatype="FP32", data=best),
            Tensor(name="scores", shape=[count, len(self._labels)], datatype="FP32", data=every),
        ]

    def output_info(self) -> list[TensorInfo]:
        """Name, type and shape of each output tensor."""
        return [
            TensorInfo(name="label", datatype="BYTES", shape=[-1]),
            TensorInfo(name="score", datatype="FP32", shape=[-1]),
            TensorInfo(name="scores", datatype="FP32", shape=[-1, len(self._labels)]),
        ]

    def answer(self, scores: Sequence[float], request: PredictRequest) -> object:
        """Returns what a request wants of one text: the best label, or the list of the best.

        Without numpy, which is slower for few labels.
        """
        if request.top_k is None:
            best = max(range(len(scores)), key=scores.__getitem__)
            return {"label": self._labels[best], "score": scores[best]}
        return self.best(scores, range(len(scores)))[: request.top_k]

    def best(self, scores: Sequence[float], chosen: Iterable[int]) -> list[dict[str, object]]:
        """Returns the chosen labels with their scores, the highest first."""
        order = sorted(chosen, key=scores.__getitem__, reverse=True)
        return [{"label": self._labels[index], "score": scores[index]} for index in order]


AnyHandler = TypeVar("AnyHandler", bound=ClassificationHandler)


def load(config: ReplicaConfig) -> ClassificationHandler:
    """Starts a warm classifier; raises as `load_as`."""
    return load_as(ClassificationHandler, config)


def load_as(kind: type[AnyHandler], config: ReplicaConfig) -> AnyHandler:
    """Starts a warm model behind a handler of this kind.

    Raises:
        CheckpointError: if a file of the model is missing or was altered.
        DeployError: if no engine passes the acceptance check.
    """
    from serve.engines import startup  # which imports torch, and frontend workers need none

    config = replace(config, version=fetched(config.version))
    metrics = Metrics(config.version.name, config.version.id)
    choice, batcher = startup.start(config, metrics.on_batch)
    return kind(config, choice, batcher, metrics)
