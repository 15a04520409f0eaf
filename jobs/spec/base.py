"""The strict base of every part of the job specification."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Strict

Item = TypeVar("Item")

Items = Annotated[tuple[Item, ...], Strict(strict=False)]
"""A YAML list, kept as a tuple so that the specification stays frozen."""


class SpecModel(BaseModel):
    """Frozen, refuses unknown keys, converts nothing silently, documents fields in place."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
