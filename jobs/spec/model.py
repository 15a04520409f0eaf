"""The model section: which weights to start from and for which task."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError

from jobs.errors import TaskError
from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel


def _known(name: str) -> str:
    try:
        return task_registry.find(name).name
    except TaskError as error:
        if name in task_registry.names():
            raise  # its package cannot be imported
        expected = " or ".join(map(repr, task_registry.names()))
        raise PydanticKnownError("literal_error", {"expected": expected}) from error


class _NamesOfAll:
    """The JSON Schema of a task's name."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "enum": task_registry.names()}


TaskName = Annotated[str, AfterValidator(_known), _NamesOfAll()]
"""Name of a task, ours or that of an installed package."""


REGISTRY_SCHEME = "registry://"
"""How the reference to a published version begins."""


Quantization = Literal["nf4", "int8"]
"""How frozen weights are held in fewer bits."""


class LoraSpec(SpecModel):
    """Low-rank adapters, which are trained instead of all weights."""

    type: Literal["lora"]
    """The kind of adapter."""
    r: Annotated[int, Field(gt=0, le=1024)] = 16
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale of the update, which is multiplied by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout probability on the input of the adapter."""
    target_modules: Literal["all-linear"] | Annotated[Items[str], Field(min_length=1)] = (
        "all-linear"
    )
    """Names of the modules that get an adapter; `all-linear` takes every linear layer but the
    head."""
    quantization: Quantization | None = None
    """Hold the frozen weights of linear layers in 4 bits (`nf4`, QLoRA) or 8 bits (`int8`), so that
    larger models fit. It takes `merge: true`, because an adapter learns what rounding did to its
    base. Needs `pip install 'raywinnow[quantization]'`."""
    merge: bool = False
    """Publish the base model with the adapter merged into it, instead of the adapter alone."""


class ModelSpec(SpecModel):
    """Which weights to start from and for which task."""

    base: Annotated[str, Field(min_length=1, max_length=1024)]
    """Hub id, directory, `s3://bucket/folder`, `package://import_name/folder` of a package, or
    `registry://name@alias` for a version that an earlier job published into the same storage: the
    alias `latest` or `deployed`, or the id of a version. An alias is looked up when the job is
    loaded."""
    task: TaskName = task_registry.DEFAULT_TASK
    """What the model learns to do."""
    dropout: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Dropout probability everywhere in the model; left out, the base model's own is kept."""
    adapter: LoraSpec | None = None
    """Train an adapter instead of all weights."""
