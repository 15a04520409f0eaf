"""The handler of sentence embeddings: parses texts and renders their vectors."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic_core

from jobs.training.model import pooling
from serve.batching.client import Answer, InferenceClient
from serve.batching.rows import Text
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.errors import HttpError
from serve.http.handler import HttpResponse
from serve.http.metrics import Metrics
from serve.http.open_inference import ScoringInferHandler, Tensor, TensorInfo
from serve.tasks.sentence_embedding import schemas
from serve.tasks.sentence_embedding.schemas import (
    OPENAI_PATH,
    PATH,
    SIMILARITY_PATH,
    EmbeddingInfo,
    EmbeddingRequest,
    SimilarityRequest,
)
from serve.version import fetched

Vectors = npt.NDArray[np.float32]
SMALLEST_NORM = 1e-12


class EmbeddingHandler(ScoringInferHandler[EmbeddingRequest]):
    """Answers requests with the vector of each text."""

    path, other_paths = PATH, (OPENAI_PATH, SIMILARITY_PATH)

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, choice, client, metrics)
        folder = Path(config.version.path)
        self._size = pooling.vector_size(folder)
        found = pooling.read(folder)
        self._is_normalized = found is not None and found.is_normalized
        self._headers = {"content-type": "application/json", "x-model-version": config.version.id}

    @property
    def info(self) -> EmbeddingInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return EmbeddingInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=self.choice.engine,
            max_length=version.max_length,
            dimensions=self._size,
        )

    def parse(self, body: bytes) -> tuple[EmbeddingRequest, list[Text]]:
        """Returns the request in a body, and its texts; raises HttpError."""
        request = schemas.parse(body, EmbeddingRequest)
        name = self.config.version.name
        if request.model not in (None, name):
            raise HttpError(404, "not_found", f"this endpoint serves {name}")
        self._check(request.dimensions)
        texts = [request.input] if isinstance(request.input, str) else request.input
        return request, [(text,) for text in texts]

    def render(self, request: EmbeddingRequest, answer: Answer) -> HttpResponse:
        """Returns the vectors of a request's texts as JSON."""
        vectors: Any = answer.scores
        if request.dimensions is not None:
            vectors = self._cut(vectors, request.dimensions).tolist()
        if request.encoding_format == "base64":
            vectors = [
                base64.b64encode(np.asarray(row, "<f4").tobytes()).decode() for row in vectors
            ]
        value = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": vector}
                for index, vector in enumerate(vectors)
            ],
            "model": self.config.version.name,
            "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
        }
        return HttpResponse(200, pydantic_core.to_json(value), self._headers_of(answer))

    async def compare(self, body: bytes, timeout_s: float) -> HttpResponse:
        """Returns the cosine of a text with each of others as JSON; raises HttpError."""
        request = schemas.parse(body, SimilarityRequest)
        self._check(request.dimensions)
        texts = [request.inputs.source_sentence, *request.inputs.sentences]
        answer = await self.score([(text,) for text in texts], timeout_s)
        vectors = _unit(np.asarray(answer.scores, np.float32)[:, : request.dimensions])
        similarities = (vectors[1:] @ vectors[0]).clip(-1, 1).tolist()
        return HttpResponse(200, pydantic_core.to_json(similarities), self._headers_of(answer))

    def tensors(self, answer: Answer) -> list[Tensor]:
        """The vector of each text."""
        shape = [len(answer.scores), len(answer.scores[0])]
        every = [number for row in answer.scores for number in row]
        return [Tensor(name="embedding", shape=shape, datatype="FP32", data=every)]

    def output_info(self) -> list[TensorInfo]:
        """Name, type and shape of the output tensor."""
        return [TensorInfo(name="embedding", datatype="FP32", shape=[-1, self._size])]

    def _check(self, dimensions: int | None) -> None:
        """Raises HttpError 422 for more dimensions than the model has."""
        if dimensions is not None and dimensions > self._size:
            message = (
                f"dimensions must be at most {self._size}, the numbers of this model's vectors"
            )
            raise HttpError(422, "invalid_request", message)

    def _cut(self, scores: Sequence[Sequence[float]], dimensions: int) -> Vectors:
        """Returns the first numbers of each vector, at length 1 if whole vectors have it."""
        cut = np.asarray(scores, np.float32)[:, :dimensions]
        return _unit(cut) if self._is_normalized else cut

    def _headers_of(self, answer: Answer) -> dict[str, str]:
        headers = {
            **self._headers,
            "x-batch-size": str(answer.batch_rows),
            "x-queue-ms": f"{1000 * answer.queue_s:.2f}",
            "x-infer-ms": f"{1000 * answer.infer_s:.2f}",
        }
        return {**headers, "x-truncated": "true"} if answer.is_cut else headers


def load(config: ReplicaConfig) -> EmbeddingHandler:
    """Starts a warm model.

    Raises:
        CheckpointError: if a file of the model is missing or was altered.
        DeployError: if no engine passes the acceptance check.
    """
    from serve.engines import startup  # which imports torch, and frontend workers need none

    config = replace(config, version=fetched(config.version))
    metrics = Metrics(config.version.name, config.version.id)
    choice, batcher = startup.start(config, metrics.on_batch)
    return EmbeddingHandler(config, choice, batcher, metrics)


def _unit(vectors: Vectors) -> Vectors:
    """Returns the vectors at length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Vectors = vectors / np.maximum(lengths, SMALLEST_NORM)
    return found
