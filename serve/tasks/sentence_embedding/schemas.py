"""Messages of an endpoint of sentence embeddings: OpenAI's embeddings, and similarities."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.http.errors import validation_error
from serve.http.open_inference import MAX_CHARACTERS, MAX_TEXTS

PATH, OPENAI_PATH, SIMILARITY_PATH = "/embeddings", "/v1/embeddings", "/similarity"
"""Paths below the endpoint's route: the second is that of clients whose base URL ends in /v1."""
SENTENCES = {
    "input": "input must be a string, or a list of 1 to"
    f" {MAX_TEXTS} strings of at most {MAX_CHARACTERS} characters; token ids are not accepted"
}
"""Messages of validation errors of fields that accept several types."""

TextField = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Dimensions = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Message = TypeVar("Message", bound=BaseModel)


class EmbeddingRequest(BaseModel):
    """Texts to embed; unknown fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"input": "a fine film"},
                {"input": ["good", "bad"], "dimensions": 64, "encoding_format": "base64"},
            ]
        },
    )

    input: TextField | Annotated[list[TextField], Field(min_length=1, max_length=MAX_TEXTS)]
    """A text, or a list of them."""
    model: Annotated[str, Field(max_length=256)] | None = None
    """Name of the model; the default is the model of this endpoint."""
    dimensions: Dimensions | None = None
    """First so many numbers of each vector, at the length 1 if whole vectors have it; the default
    is all."""
    encoding_format: Literal["float", "base64"] = "float"
    """Vectors as lists of numbers, or as base64 of little-endian float32, which is shorter."""
    user: Annotated[str, Field(max_length=256)] | None = None
    """Ignored; OpenAI's clients send it."""


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """The vectors of a request's texts, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Comparison(BaseModel):
    """A text, and the texts to compare it with."""

    model_config = ConfigDict(extra="forbid")

    source_sentence: TextField
    sentences: Annotated[list[TextField], Field(min_length=1, max_length=MAX_TEXTS - 1)]


class SimilarityRequest(BaseModel):
    """A text to compare with others."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"inputs": {"source_sentence": "It rained.", "sentences": ["It was wet.", "No."]}}
            ]
        },
    )

    inputs: Comparison
    """The text, and those to compare it with."""
    dimensions: Dimensions | None = None
    """First so many numbers of each vector that are compared; the default is all."""


class EmbeddingInfo(BaseModel):
    """The model that this endpoint serves."""

    task: str
    name: str
    version: str
    metrics: dict[str, float]
    engine: str
    max_length: int
    dimensions: int
    """Numbers of a vector."""


def parse(body: bytes, message: type[Message]) -> Message:
    """Parses the body of a request.

    Raises:
        HttpError: 400 if the body is not JSON, 422 if a field is invalid.
    """
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        raise validation_error(errors, SENTENCES) from None
