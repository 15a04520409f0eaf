"""Messages of the endpoint of a classifier of tokens, and their validation."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.http.errors import validation_error
from serve.http.open_inference import MAX_TEXTS

PATH = "/predict"
"""Path of predictions, below the endpoint's route."""
MAX_CHARACTERS = 100_000
"""Longest text; it is read in windows of the model's limit."""
SENTENCES = {"inputs": "inputs must be a string, or a list of strings that is not empty"}
"""Messages of validation errors of fields that accept several types."""

TextField = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class EntityRequest(BaseModel):
    """One text or a list of them."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"inputs": "Ada Lovelace was born in London."},
                {"inputs": ["Ada Lovelace", "in London"]},
            ]
        },
    )

    inputs: TextField | Annotated[list[TextField], Field(min_length=1, max_length=MAX_TEXTS)]
    """A text, or a list of texts. A text that is longer than the model's limit is read in windows
    that overlap."""

    @property
    def texts(self) -> list[str]:
        """The texts in their order."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class EntityScore(BaseModel):
    """A stretch of a text and what it names."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    entity: str
    start: int
    """First character in the text of the request, counted in Unicode code points."""
    end: int
    """The character after the last."""
    score: float
    """Mean probability of its words' labels."""
    text: str


class Entities(BaseModel):
    """The entities of a text in their order; they do not overlap."""

    entities: list[EntityScore]


class EntityModelInfo(BaseModel):
    """The model that this endpoint serves."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    task: str
    name: str
    version: str
    labels: list[str]
    """The entities that it finds."""
    metrics: dict[str, float]
    engine: str
    max_length: int


def parse(body: bytes) -> EntityRequest:
    """Parses the body of a predict request.

    Raises:
        HttpError: 400 if the body is not JSON, 422 if a field is invalid.
    """
    try:
        return EntityRequest.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        raise validation_error(errors, SENTENCES) from None
