"""Messages of a masked language model's endpoint: those of transformers' fill-mask pipeline."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from serve.http.open_inference import MAX_CHARACTERS

PATH = "/predict"
"""Path of predictions, below the endpoint's route."""
MAX_TEXTS, MAX_FILLINGS = 64, 100
"""Most texts of a request, and most words for a mask."""
SENTENCES = {"inputs": "inputs must be a string with a mask token, or a list of them, not empty"}
"""Messages of validation errors of fields that accept several types."""

TextField = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class FillRequest(BaseModel):
    """A text with one or more mask tokens, or a list of texts."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"inputs": "A [MASK] film.", "top_k": 3}]},
    )

    inputs: TextField | Annotated[list[TextField], Field(min_length=1, max_length=MAX_TEXTS)]
    """A text or a list of texts; each has the model's mask token at least once."""
    top_k: Annotated[int, Field(strict=True, ge=1, le=MAX_FILLINGS)] = 5
    """Number of words for each mask, the likeliest first."""

    @property
    def texts(self) -> list[str]:
        """The texts, of which there is at least one."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class Filling(BaseModel):
    """A token in place of a mask."""

    score: float
    """Its probability."""
    token: int
    token_str: str
    sequence: str
    """The whole text with the token in place of the mask."""


class MaskedInfo(BaseModel):
    """The model that this endpoint serves."""

    task: str
    name: str
    version: str
    metrics: dict[str, float]
    engine: str
    max_length: int
    mask_token: str
    """What stands for a hidden word in a text."""
