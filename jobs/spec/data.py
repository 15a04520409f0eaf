"""The data section: where the rows are and which columns matter."""

from pathlib import PurePath
from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
"""Endings of files that rows are read from."""
COMPRESSIONS = (".gz", ".zst")
"""Endings that may follow."""
FOLDERS = ("/", ".", "~")
"""How the path of a folder begins; a hub id never does."""

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
    .json or .parquet, perhaps followed by .gz or .zst: `s3://bucket/key`, or a path relative to the
    job file, in which `*` stands for several files. A list of files is read in its order."""
    name: str | None = None
    """Configuration of a hub data set, such as `sst2` of `nyu-mll/glue`."""
    split: str = "train"
    """Split of a hub data set or a saved folder; ignored for files, which hold one split each."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, or all of a list."""
        return (self.path,) if isinstance(self.path, str) else self.path

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
