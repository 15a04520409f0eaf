"""Messages of a text classifier's endpoint: requests, responses, and what makes one valid."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.batching.rows import Text
from serve.http.errors import HttpError, describe

PATH = "/predict"
"""Where predictions are requested, below the endpoint's route."""
MAX_TEXTS = 1024
"""Most texts in one request."""
MAX_CHARACTERS = 8192
"""Longest text: tokenising more costs seconds even though it is cut afterwards."""
SENTENCES = {
    "inputs": "inputs must be a string, a pair of texts, or a list of them that is not empty"
}
"""What fields of several types must be."""

TextField = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class Pair(BaseModel):
    """Two texts that are judged together."""

    model_config = ConfigDict(extra="forbid")

    text: TextField
    text_pair: TextField


class PredictRequest(BaseModel):
    """One input or a list of them."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"inputs": "a fine film"},
                {"inputs": ["good", "bad"], "top_k": 2},
                {"inputs": {"text": "It rained.", "text_pair": "It was wet."}},
            ]
        },
    )

    inputs: (
        TextField
        | Pair
        | Annotated[list[TextField | Pair], Field(min_length=1, max_length=MAX_TEXTS)]
    )
    """A text, a pair of texts, or a list of them."""
    top_k: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = None
    """So many labels for each input, best first, as a list; left out, the best label alone."""
    truncate: Annotated[bool, Field(strict=True)] = True
    """Whether inputs longer than the model takes are cut; if not, they are refused."""


class LabelScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class ModelInfo(BaseModel):
    """Which model answers."""

    task: Literal["text-classification"] = "text-classification"
    name: str
    version: str
    labels: list[str]
    metrics: dict[str, float]
    engine: str
    max_length: int
    is_pair: bool


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
    """Labels, their scores, and the scores of all labels."""

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


def parse(body: bytes) -> PredictRequest:
    """A predict request; HttpError when it is no JSON (400) or no request (422)."""
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        if errors[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the body is not valid JSON") from None
        raise HttpError(422, "invalid_request", describe(errors, SENTENCES)) from None


def as_texts(inputs: Any, *, is_pair: bool) -> list[Text]:
    """Inputs as tuples for the engine; HttpError for a pair instead of a text or the like."""
    items = inputs if isinstance(inputs, list) else [inputs]
    texts: list[Text] = [(i.text, i.text_pair) if isinstance(i, Pair) else (i,) for i in items]
    wanted = 2 if is_pair else 1
    for number, text in enumerate(texts):
        if len(text) != wanted:
            shape = '{"text": …, "text_pair": …}' if is_pair else "a string"
            message = f"inputs[{number}] must be {shape} for this model"
            raise HttpError(422, "invalid_request", message)
    return texts


def texts_of(request: InferRequest, *, is_pair: bool) -> list[Text]:
    """The texts of a protocol request: tensor `text`, and `text_pair` for models of pairs."""
    named = {tensor.name: tensor for tensor in request.inputs}
    wanted = ("text", "text_pair") if is_pair else ("text",)
    if sorted(tensor.name for tensor in request.inputs) != sorted(wanted):
        message = f"the model takes the inputs {', '.join(wanted)}"
        raise HttpError(422, "invalid_request", message)
    columns = [_strings(named[name]) for name in wanted]
    if len({len(column) for column in columns}) > 1:
        raise HttpError(422, "invalid_request", "text and text_pair differ in length")
    return list(zip(*columns, strict=True))


def _strings(tensor: Tensor) -> list[str]:
    data, count = tensor.data, len(tensor.data)
    if tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in data):
        message = f"input {tensor.name} must be BYTES with strings as its data"
        raise HttpError(422, "invalid_request", message)
    if not 1 <= count <= MAX_TEXTS or tensor.shape not in ([count], [count, 1]):
        message = f"input {tensor.name} must be of shape [n] with n texts, 1 to {MAX_TEXTS}"
        raise HttpError(422, "invalid_request", message)
    if any(len(text) > MAX_CHARACTERS for text in data):
        message = f"input {tensor.name} has a text of more than {MAX_CHARACTERS} characters"
        raise HttpError(422, "invalid_request", message)
    return list(data)
