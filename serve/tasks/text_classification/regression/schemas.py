"""Messages of a regression's endpoint."""

from pydantic import BaseModel, ConfigDict, Field

from serve.tasks.text_classification.schemas import PredictRequest


class ValueRequest(PredictRequest):
    """One input or a list of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "a fine film"},
                {"inputs": ["good", "bad"]},
                {"inputs": {"text": "It rained.", "text_pair": "It was wet."}},
            ]
        }
    )

    top_k: None = Field(default=None, json_schema_extra={"deprecated": True})
    """A regression has no labels to choose from."""


class Value(BaseModel):
    """The number that a regression of one column gives."""

    value: float


class ColumnValues(BaseModel):
    """The numbers that a regression of several columns gives, by column."""

    values: dict[str, float]
