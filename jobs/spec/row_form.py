"""The columns by which `winnow init` recognises rows that a task learns from."""

from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal[
    "text", "integer", "fraction", "number", "list", "spans", "conversation", "nested"
]
"""What the values of a column are. `fraction` is numbers of which some have decimals, `number`
other values without letters, such as dates; `list` is lists of texts or integers, `spans` lists of
`{start, end, label}`, `conversation` lists of `{role, content}`, and `nested` any other lists and
objects."""
STRUCTURED: frozenset[ColumnKind] = frozenset({"list", "spans", "conversation"})
"""Kinds that say more of a column than its name does."""


@dataclass(frozen=True, slots=True)
class FormColumn:
    """A field of the data section that names a column, and how that column is recognised."""

    field: str
    names: tuple[str, ...] = ()
    """Usual names of the column, in lower case; empty if its values decide."""
    kinds: tuple[ColumnKind, ...] = ("text",)
    """What its values may be."""
    counts: tuple[int, ...] = (1,)
    """How many columns the field may name."""
    comment: str = ""
    """Comment in the job file; `$labels` stands for the labels of the rows."""
    may_have_any_name: bool = False
    """Whether the only column of these kinds is taken, whatever its name."""
    is_input: bool = True
    """Whether the values are what a model answers: rows that share them stay in one split."""
    is_label: bool = False
    """Whether the values are labels, of which evaluation rows must have no new ones."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """One form of rows: its columns, and the template of a first job that learns from them."""

    columns: tuple[FormColumn, ...]
    """In the order of the job file."""
    template: str
    """The job file, `package/file` of a template that `winnow init` fills."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further fields of the data section, with their values."""
    is_whole_table: bool = False
    """Whether rows have no other column, apart from those that number them."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the data section that name columns."""
        return tuple(column.field for column in self.columns)
