"""The data section: where the rows are and which columns matter."""

from pathlib import PurePath
from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel

FILE_FORMATS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".parquet": "parquet"}
"""File ending to the reader of the `datasets` package; a tsv file is read with quoting off."""

Column = Annotated[str, Field(min_length=1, max_length=256)]


class SourceSpec(SpecModel):
    """Where rows come from: a hub data set or a csv, tsv, jsonl or parquet file."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    """Hub id, or a file ending in .csv, .tsv, .jsonl or .parquet: `s3://bucket/key`, or a path
    relative to the job file."""
    name: str | None = None
    """Configuration of a hub data set, such as `sst2` of `nyu-mll/glue`."""
    split: str = "train"
    """Split of a hub data set; ignored for files, which hold one split each."""

    @property
    def is_file(self) -> bool:
        """Whether the path names a file, by its ending; hub ids have none."""
        return PurePath(self.path).suffix.lower() in FILE_FORMATS

    @property
    def is_local(self) -> bool:
        """Whether the path names a file that is not in S3."""
        return self.is_file and not self.path.startswith("s3://")


class DataSpec(SpecModel):
    """The rows to learn from, the rows to judge by, and their columns."""

    train: SourceSpec
    """Rows to learn from."""
    eval: SourceSpec
    """Rows held back to judge by; never trained on."""
    text: Column | Annotated[Items[Column], Field(min_length=2, max_length=2)] | None = None
    """text-classification: column with the text, or two columns for sentence pairs."""
    label: Column = "label"
    """text-classification: column with the label, an integer or a string."""
    prompt: Column | None = None
    """causal-lm: column with the prompt."""
    response: Column | None = None
    """causal-lm: column with the response, which alone is learnt; joined to the prompt as it is."""
    messages: Column | None = None
    """causal-lm: column with a conversation, a list of `{role, content}`, instead of prompt and
    response; what the assistant says is learnt."""
    packing: bool = True
    """causal-lm: put several short samples into one row of max_length, without attention between
    them; a batch counts rows."""
    max_length: Annotated[int, Field(ge=4, le=131072)] = 128
    """Longest text in tokens; longer ones are cut."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The one or two columns that hold text; none for causal-lm."""
        return (self.text,) if isinstance(self.text, str) else self.text or ()
