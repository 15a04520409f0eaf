"""The strict base of every part of the job specification."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Strict

Item = TypeVar("Item")

Items = Annotated[tuple[Item, ...], Strict(strict=False)]
"""A YAML list, kept as a tuple so that the specification stays frozen."""


class SpecModel(BaseModel):
    """Frozen, refuses unknown keys, converts nothing silently.

    A docstring below a field says what it means; `jobs.loader.schema` reads it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # a validator for each section would double the time of the import
    )
