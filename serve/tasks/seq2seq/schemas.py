"""Messages of the endpoint of an encoder-decoder model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from serve.http.open_inference import MAX_CHARACTERS
from serve.tasks.generating.schemas import Finish

PATH = "/generate"
"""Path for texts to be written, below the endpoint's route."""
MAX_TEXTS = 128
"""Most texts of a request."""
MAX_NEW_TOKENS, MAX_BEAMS = 1024, 16
"""Largest values of `max_new_tokens` and `num_beams` in a request."""
SENTENCES = {"inputs": "inputs must be a string, or a list of strings that is not empty"}
"""Messages of validation errors of fields that accept several types."""

LONGEST_TEXT = 4 * MAX_CHARACTERS
"""Most characters of a text."""
TextField = Annotated[str, Field(max_length=LONGEST_TEXT)]


class GenerateRequest(BaseModel):
    """One text or a list of them."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"inputs": "name[The Mill], food[English], area[riverside]"},
                {"inputs": ["one text", "another"], "num_beams": 4, "max_new_tokens": 64},
            ]
        },
    )

    inputs: TextField | Annotated[list[TextField], Field(min_length=1, max_length=MAX_TEXTS)]
    """A text or a list of texts; the model's prefix is put before each."""
    max_new_tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_NEW_TOKENS)] | None = None
    """Most tokens of a written text; by default as in training."""
    num_beams: Annotated[int, Field(strict=True, ge=1, le=MAX_BEAMS)] | None = None
    """Number of drafts that beam search follows; by default as in training."""
    truncate: Annotated[bool, Field(strict=True)] = True
    """Cut inputs that are longer than the model's limit; if false, the request is refused (422)."""

    @property
    def texts(self) -> list[str]:
        """The texts, of which there is at least one."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class Written(BaseModel):
    """A written text."""

    text: str
    finish_reason: Finish


class WriterInfo(BaseModel):
    """The model that this endpoint serves."""

    task: str
    name: str
    version: str
    metrics: dict[str, float]
    engine: str
    max_length: int
    """Most tokens of an input."""
    max_new_tokens: int
    """Most tokens of a written text, if a request names no other number."""
    num_beams: int
    prefix: str
    """Text that the endpoint puts before each input."""
