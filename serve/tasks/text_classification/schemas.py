"""Messages of a text classifier's endpoint, and their validation."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.batching.rows import Text
from serve.http.errors import HttpError, describe

PATH = "/predict"
"""Path of predictions, below the endpoint's route."""
MAX_TEXTS = 1024
"""Most texts in one request."""
MAX_CHARACTERS = 8192
"""Longest text in characters. A longer one takes seconds to tokenise and is cut afterwards."""
SENTENCES = {
    "inputs": "inputs must be a string, a pair of texts, or a list of them that is not empty"
}
"""Messages of validation errors of fields that accept several types."""

TextField = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class Pair(BaseModel):
    """Two texts that are classified together."""

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
    """Number of labels for each input, as a list, best first; by default the best label alone."""
    truncate: Annotated[bool, Field(strict=True)] = True
    """Cut inputs that are longer than the model's limit; if false, the request is refused (422)."""


class LabelScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class ModelInfo(BaseModel):
    """The model that this endpoint serves."""

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
    """Name, type and shape of a tensor; -1 stands for any size."""

    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]


class ModelMetadata(BaseModel):
    """Input and output tensors of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


def parse(body: bytes) -> PredictRequest:
    """Parses the body of a predict request.

    Raises:
        HttpError: 400 if the body is not JSON, 422 if a field is invalid.
    """
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        if errors[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the body is not valid JSON") from None
        raise HttpError(422, "invalid_request", describe(errors, SENTENCES)) from None


def as_texts(inputs: Any, *, is_pair: bool) -> list[Text]:
    """Converts the inputs of a request into tuples of one text, or of two for a model of pairs.

    Raises:
        HttpError: 422 for a pair if the model takes single texts, and the reverse.
    """
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
    """Returns the texts in the tensor `text`, and in `text_pair` for a model of pairs.

    Raises:
        HttpError: 422 if a tensor is missing or has another type or shape.
    """
    named = {tensor.name: tensor for tensor in request.inputs}
    wanted = ("text", "text_pair") if is_pair else ("text",)
    if sorted(tensor.name for tensor in request.inputs) != sorted(wanted):
        message = f"the inputs must be named {', '.join(wanted)}"
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
