"""Messages of a text classifier's endpoint, and their validation."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.batching.rows import Text
from serve.http.errors import HttpError, validation_error
from serve.http.open_inference import MAX_CHARACTERS, MAX_TEXTS

PATH = "/predict"
"""Path of predictions, below the endpoint's route."""
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

    task: str
    name: str
    version: str
    labels: list[str]
    metrics: dict[str, float]
    engine: str
    max_length: int
    is_pair: bool


def parse(body: bytes) -> PredictRequest:
    """Parses the body of a predict request.

    Raises:
        HttpError: 400 if the body is not JSON, 422 if a field is invalid.
    """
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        raise validation_error(errors, SENTENCES) from None


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
