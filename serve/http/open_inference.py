"""The Open Inference Protocol, version 2, for tasks with texts in and tensors out.

Handlers that implement `InferHandler` get its routes over HTTP and its calls over gRPC; those whose
tensors are the scores of texts implement `ScoringInferHandler`.
"""

import abc
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import fastapi
from pydantic import BaseModel, ConfigDict, Field

from serve.batching.client import Answer
from serve.batching.rows import Text
from serve.http import app
from serve.http.errors import ErrorBody, HttpError
from serve.http.handler import PredictHandler, Request

MAX_TEXTS = 1024
"""Most texts in one request."""
MAX_CHARACTERS = 8192
"""Longest text: tokenising more costs seconds even though it is cut afterwards."""


class Tensor(BaseModel):
    """An input or output of the Open Inference Protocol."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] | None = None


class InferRequest(BaseModel):
    """Open Inference Protocol, version 2: texts as BYTES."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": [
                        {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["fine film"]}
                    ]
                }
            ]
        }
    )

    id: Annotated[str, Field(max_length=128)] | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=2)]
    outputs: list[dict[str, Any]] | None = None
    parameters: dict[str, Any] | None = None


class InferResponse(BaseModel):
    """The output tensors of the texts, such as labels with their scores."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[Tensor]


class TensorInfo(BaseModel):
    """A tensor without its data; -1 is any size."""

    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class InferHandler(PredictHandler[Request]):
    """Answers requests of the protocol besides its own."""

    longest_text: ClassVar[int] = MAX_CHARACTERS
    """Characters of the longest text in a request."""

    @abc.abstractmethod
    async def outputs(self, texts: Sequence[Text], timeout_s: float) -> list[Tensor]:
        """The output tensors of texts, each of shape [texts] or [texts, n]; raises HttpError."""

    @abc.abstractmethod
    def output_info(self) -> list[TensorInfo]:
        """Name, type and shape of each output tensor; -1 is any number of texts."""

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """The tensors of a request's texts; raises HttpError."""
        version = self.config.version
        texts = texts_of(request, is_pair=version.is_pair, longest=self.longest_text)
        return InferResponse(
            id=request.id,
            model_name=version.name,
            model_version=version.id,
            outputs=await self.outputs(texts, timeout_s),
        )

    def metadata(self) -> ModelMetadata:
        """What the model takes and returns."""
        version = self.config.version
        inputs = ("text", "text_pair") if version.is_pair else ("text",)
        return ModelMetadata(
            name=version.name,
            versions=[version.id],
            platform=f"winnow_{self.choice.engine}",
            inputs=[TensorInfo(name=name, datatype="BYTES", shape=[-1]) for name in inputs],
            outputs=self.output_info(),
        )


class ScoringInferHandler(InferHandler[Request]):
    """Answers requests of the protocol from the scores of their texts."""

    @abc.abstractmethod
    def tensors(self, answer: Answer) -> list[Tensor]:
        """The output tensors of scored texts, each of shape [texts] or [texts, n]."""

    async def outputs(self, texts: Sequence[Text], timeout_s: float) -> list[Tensor]:
        """The output tensors of texts; raises HttpError."""
        return self.tensors(await self.score(texts, timeout_s))


def server_metadata() -> dict[str, Any]:
    """The server's name and version."""
    return {"name": "winnow", "version": "1", "extensions": []}


def named(name: str, version: str = "") -> InferHandler[Any]:
    """The handler of this process, if it has the model and version that a request names."""
    handler = app.require_handler()
    if not isinstance(handler, InferHandler):
        raise HttpError(404, "not_found", "this endpoint does not answer the protocol for models")
    if name != handler.config.version.name:
        raise HttpError(404, "not_found", f"this endpoint serves {handler.config.version.name}")
    if version not in ("", handler.config.version.id):
        raise HttpError(
            404, "not_found", f"this endpoint serves version {handler.config.version.id}"
        )
    return handler


def add_routes(api: fastapi.FastAPI) -> None:
    """Add the protocol's routes to an application whose handler is an `InferHandler`."""
    missing: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody}}

    @api.get("/v2")
    async def server() -> dict[str, Any]:
        """Open Inference Protocol: the server."""
        return server_metadata()

    @api.get("/v2/models/{name}", responses=missing)
    async def model_metadata(name: str) -> ModelMetadata:
        """Open Inference Protocol: what the model takes and returns."""
        return named(name).metadata()

    @api.get("/v2/models/{name}/ready", responses=missing)
    async def model_ready(name: str) -> dict[str, Any]:
        """Open Inference Protocol: whether this model answers."""
        return {"name": named(name).config.version.name, "ready": True}

    @api.post("/v2/models/{name}/infer", responses={**app.ERRORS, **missing})
    async def infer(name: str, body: InferRequest, request: fastapi.Request) -> InferResponse:
        """Open Inference Protocol: answer the texts of the tensor `text`."""
        return await named(name).infer(body, app.timeout(request))


def texts_of(request: InferRequest, *, is_pair: bool, longest: int = MAX_CHARACTERS) -> list[Text]:
    """The texts of a protocol request: tensor `text`, and `text_pair` for models of pairs.

    Raises:
        HttpError: 422 for other tensors, and for texts of more than `longest` characters.
    """
    named = {tensor.name: tensor for tensor in request.inputs}
    wanted = ("text", "text_pair") if is_pair else ("text",)
    if sorted(tensor.name for tensor in request.inputs) != sorted(wanted):
        message = f"the inputs must be named {', '.join(wanted)}"
        raise HttpError(422, "invalid_request", message)
    columns = [_strings(named[name], longest) for name in wanted]
    if len({len(column) for column in columns}) > 1:
        raise HttpError(422, "invalid_request", "text and text_pair differ in length")
    return list(zip(*columns, strict=True))


def _strings(tensor: Tensor, longest: int) -> list[str]:
    data, count = tensor.data, len(tensor.data)
    if tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in data):
        message = f"input {tensor.name} must be BYTES with strings as its data"
        raise HttpError(422, "invalid_request", message)
    if not 1 <= count <= MAX_TEXTS or tensor.shape not in ([count], [count, 1]):
        message = f"input {tensor.name} must be of shape [n] with n texts, 1 to {MAX_TEXTS}"
        raise HttpError(422, "invalid_request", message)
    if any(len(text) > longest for text in data):
        message = f"input {tensor.name} has a text of more than {longest} characters"
        raise HttpError(422, "invalid_request", message)
    return list(data)
