"""Which columns hold text, label and conversations is seen from their values and names."""

from typing import Any

import pytest

from jobs.errors import DataError
from jobs.training.data import columns
from jobs.training.data.columns import Roles
from jobs.training.data.table import Table

ROWS = 12
TEXT = [f"a review of film number {n}, which is as long as reviews are" for n in range(ROWS)]
OTHER = [f"another sentence about film {n} that is not much shorter" for n in range(ROWS)]
TITLE = [f"Film {n}" for n in range(ROWS)]
LABEL = ["good", "bad", "fair"] * 4
FLAG = ["0", "1"] * 6
ID = [str(n) for n in range(ROWS)]
HASH = [f"{n:032x}" for n in range(ROWS)]
DATE = [f"2024-01-{1 + n:02}" for n in range(ROWS)]
CHAT = [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]] * ROWS
TURNS = [[{"from": "human", "value": "x"}]] * ROWS


@pytest.mark.parametrize(
    ("table", "roles"),
    [
        ({"text": TEXT, "label": LABEL}, Roles(("text",), "label")),
        ({"kind": LABEL, "words": TEXT}, Roles(("words",), "kind")),
        ({"words": TEXT, "stars": [1, 2, 3] * 4}, Roles(("words",), "stars")),
        ({"id": FLAG, "words": TEXT, "stars": LABEL}, Roles(("words",), "stars")),
        ({"Unnamed: 0": ID, "words": TEXT, "stars": LABEL}, Roles(("words",), "stars")),
        ({"number": ID, "words": TEXT, "stars": LABEL}, Roles(("words",), "stars")),
        ({"name": HASH, "words": TEXT, "day": DATE, "s": LABEL}, Roles(("words",), "s")),
        ({"words": TEXT, "language": FLAG, "label": LABEL}, Roles(("words",), "label")),
        ({"text": TEXT, "label": FLAG, "label_text": LABEL}, Roles(("text",), "label")),
        ({"words": TEXT, "language": FLAG, "gold_label": LABEL}, Roles(("words",), "gold_label")),
        ({"words": TEXT, "label_id": FLAG}, Roles(("words",), "label_id")),
        ({"title": TITLE, "body": TEXT, "label": LABEL}, Roles(("body",), "label")),
        ({"text": TEXT, "clean": TEXT, "label": LABEL}, Roles(("text",), "label")),
        ({"one": TEXT, "other": OTHER, "label": LABEL}, Roles(("one", "other"), "label")),
        (
            {"#1 ID": ID, "#1 String": TITLE, "#2 String": TEXT, "Quality": FLAG},
            Roles(("#1 String", "#2 String"), "Quality"),
        ),
        (
            {"sentence1": TEXT, "sentence2": OTHER, "explanation": TEXT, "label": LABEL},
            Roles(("sentence1", "sentence2"), "label"),
        ),
        (
            {"premise": TEXT, "hypothesis": TITLE, "label": LABEL},
            Roles(("premise", "hypothesis"), "label"),
        ),
        ({"id": ID, "dialog": CHAT, "source": FLAG}, Roles(messages="dialog")),
        ({"messages": CHAT, "rejected": CHAT}, Roles(messages="messages")),
    ],
)
def test_columns_are_told_apart(table: dict[str, Any], roles: Roles) -> None:
    assert columns.choose(Table(table), "a.csv") == roles


def test_a_label_column_may_repeat_nothing_in_a_small_table() -> None:
    table = Table({"text": ["well done", "far too long"], "label": ["good", "bad"]})
    assert columns.choose(table, "a.csv") == Roles(("text",), "label")


def test_classes_of_numbers_are_described_by_their_names() -> None:
    found = columns.describe("l", Table({"l": [0, 1, -1]}, {"l": ("very good", "bad")}))
    assert (found.kind, found.distinct, found.words) == ("text", 2, 1.5)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({"one": TEXT, "day": FLAG, "kind": LABEL}, "one, day, kind"),
        ({"one": TEXT, "other": OTHER}, "one, other"),
        ({"one": TEXT, "two": TEXT, "three": OTHER, "label": LABEL}, "one, two, three, label"),
        ({"words": TEXT, "score": [0.5, 1.5, 2.0] * 4}, "words, score"),
        ({"source": TEXT, "target": OTHER}, "source, target"),
        ({"stars": LABEL, "flag": FLAG}, "stars, flag"),
        ({"chosen": CHAT, "rejected": CHAT}, "chosen, rejected"),
        ({"id": ID, "conversations": TURNS}, "id, conversations"),
    ],
)
def test_a_choice_is_left_to_the_user(table: dict[str, Any], names: str) -> None:
    with pytest.raises(DataError) as caught:
        columns.choose(Table(table), "a.csv")
    message = str(caught.value)
    assert message.startswith(f"a.csv has the columns {names}, and it is not clear which are text")
    assert "--text COLUMN (twice for pairs) and --label COLUMN" in message
    assert ("{role, content}" in message) == any(rows in (CHAT, TURNS) for rows in table.values())


def test_rows_with_several_labels_are_refused_unless_the_column_is_named() -> None:
    table = Table({"text": TEXT, "tags": ["war", "drama", "drama, war", "a, b"] * 3})
    with pytest.raises(DataError, match="'drama, war' in column 'tags' lists several labels"):
        columns.choose(table, "a.csv")
    assert columns.choose(table, "a.csv", label="tags").label == "tags"


def test_what_the_user_names_wins() -> None:
    table = Table({"a": TEXT, "b": OTHER, "language": FLAG, "label": LABEL, "chat": CHAT})
    assert columns.choose(table, "x", label="language") == Roles(("a", "b"), "language")
    assert columns.choose(table, "x", text=["b"]) == Roles(("b",), "label")
    assert columns.choose(table, "x", ["b", "a"], "language") == Roles(("b", "a"), "language")
    with pytest.raises(DataError, match="x has no column 'c'; its columns are a, b, lang"):
        columns.choose(table, "x", text=["c"])


def test_a_table_of_one_column_teaches_nothing() -> None:
    with pytest.raises(DataError, match=r"a\.csv has only the column 'text'"):
        columns.choose(Table({"text": TEXT}), "a.csv")


def test_a_row_in_place_of_the_header_is_seen_unless_columns_are_named() -> None:
    table = Table({"a film that is worth it": TEXT, "1": FLAG})
    with pytest.raises(DataError, match=r"a\.csv has no header: .* 'a film that is worth it' and"):
        columns.choose(table, "a.csv")
    named = columns.choose(table, "a.csv", ["a film that is worth it"], "1")
    assert named.label == "1"
    assert columns.choose(Table({"text": TEXT, "spam": ["spam", "ham"] * 6}), "x").label == "spam"
