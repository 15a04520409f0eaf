"""Schemes of tags: which words belong to which entity. Everything is converted to BIO.

In BIO (IOB2) each entity begins with B- and goes on with I-. In IOB1 an entity begins with I-, and
with B- only directly after another entity of its type. In BIOES its last word has E- and an entity
of one word S-; BILOU has L- and U- for these.
"""

from collections.abc import Callable, Sequence

from jobs.errors import DataError, shown

OUTSIDE = "O"
"""Tag of words outside of entities; it has the number 0."""
NO_ENTITY = ("O", "")
LAST_AND_ALONE = {"L": "E", "U": "S"}
"""The prefixes of BILOU, in BIOES."""
PREFIXES = "BIESLU"

Tag = tuple[str, str]
"""Prefix and entity; the entity is empty outside."""
Tags = Sequence[Tag]
Fault = tuple[int, str]
"""Number of a word, from 0, and the rule that its tag breaks."""


def to_bio(rows: Sequence[Sequence[str]], name: str) -> list[list[str]]:
    """Returns the tags of each row in BIO; `name` stands for the rows in errors.

    The scheme is that of all rows together: one that has E-, S-, L- or U- is BIOES or BILOU, any
    other is BIO or else IOB1. Rows that contain an entity are never valid in both.

    Raises:
        DataError: with the row and the word, for tags that follow no scheme.
    """
    split = [_split(row, f"{name} row {number}") for number, row in enumerate(rows, 1)]
    used = {prefix for row in split for prefix, _ in row}
    if used <= {"O", "B", "I"}:
        fault = _first_fault(split, _bio_fault, name)
        if fault and _first_fault(split, _iob1_fault, name):
            raise DataError(fault)
        return [_as_bio(row) for row in split]
    if used & set("ES") and used & set("LU"):
        raise DataError(f"{name} mixes tags of BIOES and of BILOU; write one scheme")
    split = [
        [(LAST_AND_ALONE.get(prefix, prefix), entity) for prefix, entity in row] for row in split
    ]
    if fault := _first_fault(split, _bioes_fault, name):
        raise DataError(fault)
    begins = {"B": "B", "S": "B", "I": "I", "E": "I", "O": "O"}
    return [_as_bio([(begins[prefix], entity) for prefix, entity in row]) for row in split]


def label_names(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns all labels of a model for rows in BIO: O, then B- and I- of each entity, sorted."""
    entities = sorted({tag[2:] for row in rows for tag in row if tag != OUTSIDE})
    return (OUTSIDE, *(f"{prefix}-{entity}" for entity in entities for prefix in "BI"))


def continued(tags: Sequence[str]) -> list[str]:
    """Returns the tags of a row in BIO of which words are missing.

    An entity without its first word begins with the next one.
    """
    return _as_bio([(tag[0], tag[2:]) for tag in tags])


def _split(row: Sequence[str], place: str) -> list[Tag]:
    found = []
    for number, tag in enumerate(row, 1):
        prefix, dash, entity = tag.partition("-")
        if tag != OUTSIDE and not (len(prefix) == 1 and prefix in PREFIXES and dash and entity):
            raise DataError(
                f"{place}: tag {number}, {shown(tag)}, is of no known scheme; a tag is O, or B-,"
                " I-, E- or S- and the name of an entity, such as B-person"
            )
        found.append((prefix, entity))
    return found


def _first_fault(rows: Sequence[Tags], fault_of: Callable[[Tag, Tag, Tag], str], name: str) -> str:
    """Returns a sentence about the first tag that a scheme does not allow; empty without one."""
    for number, row in enumerate(rows, 1):
        padded = [NO_ENTITY, *row, NO_ENTITY]
        for at in range(1, len(padded) - 1):
            if rule := fault_of(*padded[at - 1 : at + 2]):
                tag = "-".join(filter(None, padded[at]))
                return f"{name} row {number}: tag {at}, {shown(tag)}, {rule}"
    return ""


def _bio_fault(before: Tag, tag: Tag, _: Tag) -> str:
    if tag[0] != "I" or (before[0] in "BI" and before[1] == tag[1]):
        return ""
    return f"follows {_shown(before)}, and an entity begins with B-{tag[1]}"


def _iob1_fault(before: Tag, tag: Tag, _: Tag) -> str:
    if tag[0] != "B" or before[1] == tag[1]:
        return ""
    return f"follows {_shown(before)}, and an entity begins with I-{tag[1]} there"


def _bioes_fault(before: Tag, tag: Tag, after: Tag) -> str:
    is_open = before[0] in "BI"
    if tag[0] in "IE" and not (is_open and before[1] == tag[1]):
        return f"follows {_shown(before)}, and an entity of several words begins with B-{tag[1]}"
    if tag[0] in "BI" and not (after[0] in "IE" and after[1] == tag[1]):
        return f"is followed by {_shown(after)}, and an entity of several words ends with its last"
    return ""


def _as_bio(row: Tags) -> list[str]:
    """Returns tags whose entities begin with B-: an I- that continues none becomes B-."""
    found: list[str] = []
    before = NO_ENTITY
    for prefix, entity in row:
        begins = prefix == "B" or before[1] != entity
        found.append(OUTSIDE if prefix == "O" else f"{'B' if begins else 'I'}-{entity}")
        before = (prefix, entity)
    return found


def _shown(tag: Tag) -> str:
    return "-".join(filter(None, tag))
