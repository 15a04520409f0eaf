"""Reads CoNLL files: a token and its tag on each line, and an empty line after each sentence."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.errors import DataError, shown
from jobs.training.data.compressed import open_text
from jobs.training.data.table import Table

TOKENS, TAGS = "tokens", "tags"
"""Names of the first and of the last column; those between are named by their number, from 2."""
DOCUMENT = "-DOCSTART-"
"""How a line begins that begins a document; it is no token."""
BLANKS = " \t\r\n"
"""Characters of a line that ends a sentence; others, such as a no-break space, may be a token."""


def read(path: Path, name: str) -> Table:
    """Returns a row for each sentence, with a list for each column of the file.

    Columns are separated by tabs if the first line has one, else by spaces. `name` stands for the
    file in errors.

    Raises:
        DataError: with the line that has no tag, an empty token, or another number of columns.
    """
    with open_text(path) as lines:
        sentences = list(_sentences(lines, name))
    if not sentences:
        return Table({TOKENS: [], TAGS: []})
    width = len(sentences[0][0])
    titles = [TOKENS, *map(str, range(2, width)), TAGS]
    columns: dict[str, list[list[str]]] = {title: [] for title in titles}
    for sentence in sentences:
        for title, values in zip(titles, zip(*sentence, strict=True), strict=True):
            columns[title].append(list(values))
    return Table(columns)


def _sentences(lines: Iterator[str], name: str) -> Iterator[list[Sequence[str]]]:
    """Yields the fields of each line of a sentence, for each sentence."""
    sentence: list[Sequence[str]] = []
    separator: str | None = None
    width = 0
    for number, line in enumerate(lines, 1):
        text = line.strip(BLANKS)
        if not text or text.startswith(DOCUMENT):
            if sentence:
                yield sentence
            sentence = []
            continue
        if not width:
            separator = "\t" if "\t" in text else " "
        fields = _fields(line, separator or " ")
        width = width or len(fields)
        _check(fields, width, f"{name} line {number}")
        sentence.append(fields)
    if sentence:
        yield sentence


def _fields(line: str, separator: str) -> list[str]:
    if separator == "\t":
        return line.rstrip("\r\n").split("\t")
    return [field for field in line.strip(BLANKS).split(" ") if field]


def _check(fields: Sequence[str], width: int, place: str) -> None:
    if len(fields) < 2:
        raise DataError(
            f"{place} has one column: {shown(fields[0])}; each line has a token and its tag, with a"
            " tab or a space between"
        )
    if len(fields) != width:
        raise DataError(
            f"{place} has {len(fields)} columns, and the first line {width}: {shown(fields)}"
        )
    if not fields[0] or not fields[-1]:
        raise DataError(f"{place} has an empty token or tag: {shown(fields)}")
