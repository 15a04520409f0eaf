"""The data section: where the rows are and which columns matter."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel
from jobs.spec.task import VARIANT_MARK

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".conll")
"""Endings of files that rows are read from."""
COMPRESSIONS = (".gz", ".zst")
"""Endings that may follow."""
FOLDERS = ("/", ".", "~")
"""How the path of a folder begins; a hub id never does."""

NAMED_TASK = "task"
"""Key of the context of a validation, whose value is the task of a job with a wrong model
section."""
MOST_SHOWN = 3
"""Paths of a list that a message names."""

Column = Annotated[str, Field(min_length=1, max_length=256)]
Location = Annotated[str, Field(min_length=1, max_length=1024)]


def format_of(path: str) -> str:
    """The ending of a file that rows can be read from, in lower case; empty for any other name."""
    name = PurePath(path.lower())
    ending = PurePath(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix
    return ending if ending in FORMATS else ""


class SourceSpec(SpecModel):
    """Where rows come from: files, a folder that `datasets` saved, or a data set of the hub."""

    path: Location | Annotated[Items[Location], Field(min_length=1)]
    """Hub id, a folder written by `save_to_disk`, or a file ending in .csv, .tsv, .jsonl, .ndjson,
    .json, .parquet or .conll, perhaps followed by .gz or .zst: `s3://bucket/key`, or a path
    relative to the job file, in which `*` stands for several files. A list of files is read in its
    order."""
    name: str | None = None
    """Configuration of a hub data set, such as `sst2` of `nyu-mll/glue`."""
    split: str = "train"
    """Split of a hub data set or a saved folder; ignored for files, which hold one split each."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, or all of a list."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def placed_paths(self) -> tuple[tuple[tuple[str | int, ...], str], ...]:
        """Each path with its place in the section: `path`, or an item of the list there."""
        if isinstance(self.path, str):
            return ((("path",), self.path),)
        return tuple((("path", index), path) for index, path in enumerate(self.path))

    @property
    def shown(self) -> str:
        """The first paths in one line, for messages."""
        return ", ".join([*self.paths[:MOST_SHOWN], *(["…"] if self.paths[MOST_SHOWN:] else [])])

    @property
    def is_file(self) -> bool:
        """Whether the paths name files, by their endings; hub ids and folders have none."""
        return all(format_of(path) for path in self.paths)

    @property
    def is_local(self) -> bool:
        """Whether the paths name files or a folder of this machine."""
        return all(
            not path.startswith("s3://") and (format_of(path) or path.startswith(FOLDERS))
            for path in self.paths
        )


class DataSpec(SpecModel):
    """The rows to learn from and the rows to judge by; each task adds its columns and options."""

    train: SourceSpec
    """Rows to learn from."""
    eval: SourceSpec
    """Rows held back to judge by; never trained on."""
    max_length: Annotated[int, Field(ge=4, le=131072)] = 128
    """Longest text in tokens; longer ones are cut."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns whose texts are the input of a row; none where its length is not theirs."""
        return ()

    @property
    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """Columns of each sequence of tokens that the model reads of a row; empty like those."""
        return (self.text_columns,) if self.text_columns else ()

    @property
    def sequence_count(self) -> int:
        """Number of sequences of tokens that the model reads of a row."""
        return max(1, len(self.sequences))

    @property
    def text_prefix(self) -> str:
        """What stands before the text of each row."""
        return ""

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Columns whose texts a decoder writes, one a row; empty without one."""
        return ()

    @property
    def target_tokens(self) -> int:
        """Longest target in tokens, which a decoder reads beside the input; 0 without a decoder."""
        return 0

    @property
    def is_packed(self) -> bool:
        """Whether several samples may share a row."""
        return False

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the loss compares the rows of a global batch, which then is one pass."""
        return False

    @property
    def variant(self) -> str:
        """The variant of the task that the section chooses; empty for the task itself."""
        return ""

    def violations(self) -> Iterator[tuple[str, str]]:
        """Rules of the task that the section breaks: a field, or an empty text, and a sentence."""
        yield from ()

    def violations_in(self, job: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Rules between the section and the rest of its job, a JobSpec: a path and a sentence."""
        yield from ()


def _of_task(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> DataSpec:
    """Reads the section as the task of the job has it; `model` stands before `data`."""
    if isinstance(value, DataSpec):
        return value
    model = info.data.get("model")
    named = (info.context or {}).get(NAMED_TASK, task_registry.DEFAULT_TASK)
    name = model.task if model is not None else named
    found = task_registry.find(name).data.model_validate(value)
    assert isinstance(found, DataSpec)
    chosen = task_registry.chosen(name, found.variant).name
    if VARIANT_MARK in name and name != chosen:
        raise ValueError(
            f"makes the task {chosen}, and model.task is {name}; name the task without its"
            " variant, which the data section chooses"
        )
    return found


class _SchemaOfAll:
    """The JSON Schema of the section: that of any task."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kinds = [task.data for task in task_registry.every()]
        return {"anyOf": [handler(kind.__pydantic_core_schema__) for kind in kinds]}


TaskData = Annotated[SerializeAsAny[DataSpec], WrapValidator(_of_task), _SchemaOfAll()]
"""The data section, with the columns and options of the job's task."""
