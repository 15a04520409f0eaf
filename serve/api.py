"""The HTTP surface of a text classifier: what comes in, what goes out, and the errors."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_TEXTS = 1024
"""Most texts in one request."""
MAX_CHARACTERS = 8192
"""Longest text: tokenising more costs seconds even though it is cut afterwards."""

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class Pair(BaseModel):
    """Two texts that are judged together."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    text_pair: Text


class PredictRequest(BaseModel):
    """One input or a list of them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"inputs": "a fine film"}, {"inputs": ["good", "bad"]}]},
    )

    inputs: Text | Pair | Annotated[list[Text | Pair], Field(min_length=1, max_length=MAX_TEXTS)]


class LabelScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class ModelInfo(BaseModel):
    """Which model answers."""

    name: str
    version: str
    labels: list[str]
    metrics: dict[str, float]


class ErrorDetail(BaseModel):
    """What went wrong, without the input that caused it."""

    code: str
    message: str


class ErrorBody(BaseModel):
    """The one shape of every error."""

    error: ErrorDetail


def describe(errors: list[Any]) -> str:
    """The first validation error in words that do not repeat the input."""
    first = errors[0]
    if "inputs" in first["loc"] and first["type"] not in ("missing", "string_too_long", "too_long"):
        return "inputs must be a string, a pair of texts, or a list of them that is not empty"
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return f"{where or 'body'}: {first['msg']}"


def as_texts(inputs: Any, *, is_pair: bool) -> list[tuple[str, ...]]:
    """Inputs as tuples for the engine; ValueError when a pair stands for a text or the reverse."""
    items = inputs if isinstance(inputs, list) else [inputs]
    texts: list[tuple[str, ...]] = [
        (i.text, i.text_pair) if isinstance(i, Pair) else (i,) for i in items
    ]
    wanted = 2 if is_pair else 1
    for number, text in enumerate(texts):
        if len(text) != wanted:
            shape = '{"text": …, "text_pair": …}' if is_pair else "a string"
            raise ValueError(f"inputs[{number}] must be {shape} for this model")
    return texts
