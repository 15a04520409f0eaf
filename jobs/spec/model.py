"""The model section: which weights to start from and for which task."""

from typing import Annotated, Literal

from pydantic import Field

from jobs.spec.base import Items, SpecModel

Task = Literal["text-classification", "causal-lm"]


class LoraSpec(SpecModel):
    """Low-rank adapters trained instead of all weights."""

    type: Literal["lora"]
    """The kind of adapter."""
    r: Annotated[int, Field(gt=0, le=1024)] = 16
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale of the update; it is multiplied by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout in front of the adapter."""
    target_modules: Literal["all-linear"] | Annotated[Items[str], Field(min_length=1)] = (
        "all-linear"
    )
    """Names of the modules that get an adapter; `all-linear` takes every linear layer but the
    head."""
    merge: bool = False
    """Publish the base model with the adapter merged into it, instead of the adapter alone."""


class ModelSpec(SpecModel):
    """Which weights to start from and for which task."""

    base: Annotated[str, Field(min_length=1, max_length=1024)]
    """Hub id, directory, `s3://bucket/folder`, or `package://import_name/folder` of a package."""
    task: Task = "text-classification"
    """What the model learns to do."""
    dropout: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Dropout probability everywhere in the model; left out, the base model's own is kept."""
    adapter: LoraSpec | None = None
    """Train an adapter instead of all weights."""
