"""Which columns hold text, label and conversations is seen from their values and names."""

from typing import Any

import pytest

from jobs.errors import DataError
from jobs.spec import task_registry
from jobs.training.data import columns, row_forms
from jobs.training.data.roles import Roles
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
NUMBERS = [n / 4 for n in range(ROWS)]
TASKS = [kind for task in task_registry.ours() for kind in task.kinds]


def choose(table: Table, name: str, **named: tuple[str, ...]) -> Roles:
    return row_forms.choose(table, name, TASKS, named)


def labelled(*text: str, label: str) -> dict[str, tuple[str, ...]]:
    return {"text": text, "label": (label,)}


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"text": TEXT, "label": LABEL}, labelled("text", label="label")),
        ({"kind": LABEL, "words": TEXT}, labelled("words", label="kind")),
        ({"words": TEXT, "stars": [1, 2, 3] * 4}, labelled("words", label="stars")),
        ({"id": FLAG, "words": TEXT, "stars": LABEL}, labelled("words", label="stars")),
        ({"Unnamed: 0": ID, "words": TEXT, "stars": LABEL}, labelled("words", label="stars")),
        ({"number": ID, "words": TEXT, "stars": LABEL}, labelled("words", label="stars")),
        ({"name": HASH, "words": TEXT, "day": DATE, "s": LABEL}, labelled("words", label="s")),
        ({"words": TEXT, "language": FLAG, "label": LABEL}, labelled("words", label="label")),
        ({"text": TEXT, "label": FLAG, "label_text": LABEL}, labelled("text", label="label")),
        (
            {"words": TEXT, "language": FLAG, "gold_label": LABEL},
            labelled("words", label="gold_label"),
        ),
        ({"words": TEXT, "label_id": FLAG}, labelled("words", label="label_id")),
        ({"title": TITLE, "body": TEXT, "label": LABEL}, labelled("body", label="label")),
        ({"text": TEXT, "clean": TEXT, "label": LABEL}, labelled("text", label="label")),
        ({"one": TEXT, "other": OTHER, "label": LABEL}, labelled("one", "other", label="label")),
        (
            {"#1 ID": ID, "#1 String": TITLE, "#2 String": TEXT, "Quality": FLAG},
            labelled("#1 String", "#2 String", label="Quality"),
        ),
        (
            {"sentence1": TEXT, "sentence2": OTHER, "explanation": TEXT, "label": LABEL},
            labelled("sentence1", "sentence2", label="label"),
        ),
        (
            {"premise": TEXT, "hypothesis": TITLE, "label": LABEL},
            labelled("premise", "hypothesis", label="label"),
        ),
        ({"id": ID, "dialog": CHAT, "source": FLAG}, {"messages": ("dialog",)}),
        ({"messages": CHAT, "rejected": CHAT}, {"messages": ("messages",)}),
    ],
)
def test_columns_are_told_apart(table: dict[str, Any], found: dict[str, tuple[str, ...]]) -> None:
    assert choose(Table(table), "a.csv").columns == found


def test_a_label_column_may_repeat_nothing_in_a_small_table() -> None:
    table = Table({"text": ["well done", "far too long"], "label": ["good", "bad"]})
    assert choose(table, "a.csv").columns == labelled("text", label="label")


def test_classes_of_numbers_are_described_by_their_names() -> None:
    found = columns.describe("l", Table({"l": [0, 1, -1]}, {"l": ("very good", "bad")}))
    assert (found.kind, found.distinct, found.words) == ("text", 2, 1.5)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({"one": TEXT, "day": FLAG, "kind": LABEL}, "one, day, kind"),
        ({"one": TEXT, "other": OTHER}, "one, other"),
        ({"one": TEXT, "two": TEXT, "three": OTHER, "label": LABEL}, "one, two, three, label"),
        ({"words": TEXT, "price": NUMBERS, "score": [0.5, 1.5, 2.0] * 4}, "words, price, score"),
        ({"source": TEXT, "aim": OTHER}, "source, aim"),
        ({"stars": LABEL, "flag": FLAG}, "stars, flag"),
        ({"texts": TURNS, "label": TEXT}, "texts, label"),
        ({"id": ID, "conversations": TURNS}, "id, conversations"),
    ],
)
def test_a_choice_is_left_to_the_user(table: dict[str, Any], names: str) -> None:
    with pytest.raises(DataError) as caught:
        choose(Table(table), "a.csv")
    message = str(caught.value)
    assert message.startswith(f"a.csv has the columns {names}, and it is not clear which are text")
    assert "--text COLUMN (twice for pairs) and --label COLUMN" in message
    assert ("{role, content}" in message) == any(rows in (CHAT, TURNS) for rows in table.values())


def test_rows_with_several_labels_are_refused_unless_the_column_is_named() -> None:
    table = Table({"text": TEXT, "tags": ["war", "drama", "drama, war", "a, b"] * 3})
    with pytest.raises(DataError, match="'drama, war' in column 'tags' lists several labels"):
        choose(table, "a.csv")
    assert choose(table, "a.csv", label=("tags",)).label == "tags"


def test_what_the_user_names_wins() -> None:
    table = Table({"a": TEXT, "b": OTHER, "language": FLAG, "label": LABEL, "chat": CHAT})
    assert choose(table, "x", label=("language",)).columns == labelled("a", "b", label="language")
    assert choose(table, "x", text=("b",)).columns == labelled("b", label="label")
    assert choose(table, "x", text=("b", "a"), label=("language",)).columns == labelled(
        "b", "a", label="language"
    )
    with pytest.raises(DataError, match="x has no column 'c'; its columns are a, b, lang"):
        choose(table, "x", text=("c",))


def test_a_column_of_texts_that_is_not_called_so_teaches_nothing() -> None:
    with pytest.raises(DataError, match=r"a\.csv has only the column 'review'"):
        choose(Table({"review": TEXT}), "a.csv")


def test_a_row_in_place_of_the_header_is_seen_unless_columns_are_named() -> None:
    table = Table({"a film that is worth it": TEXT, "1": FLAG})
    with pytest.raises(DataError, match=r"a\.csv has no header: .* 'a film that is worth it' and"):
        choose(table, "a.csv")
    named = choose(table, "a.csv", text=("a film that is worth it",), label=("1",))
    assert named.label == "1"
    assert choose(Table({"text": TEXT, "spam": ["spam", "ham"] * 6}), "x").label == "spam"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "integer"),
        (["1.0", "2.0"], "number"),
        (["1.5", "2.0"], "fraction"),
        (DATE, "number"),
        (CHAT, "conversation"),
        ([["a", "b"], []], "list"),
        ([[0, 2], [1]], "list"),
        ([[0.5, 2]], "nested"),
        ([[], []], "nested"),
        ([[{"start": 0, "end": 1, "label": "x", "more": 1}], []], "spans"),
        ([{"start": [0], "end": [1], "label": ["x"]}], "spans"),
        ([{"start": 0, "end": 1, "label": "x"}], "nested"),
        (TURNS, "nested"),
    ],
)
def test_the_kind_of_a_column_is_seen_from_its_values(values: list[Any], kind: str) -> None:
    assert columns.describe("c", Table({"c": values})).kind == kind
