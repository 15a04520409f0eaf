"""Evaluation rows are drawn from every label, and share no text with training rows."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.training.data import holdout

few = settings(max_examples=100, deadline=None, derandomize=True)
ROWS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), min_size=2, max_size=60)


def texts_of(numbers: list[int]) -> list[tuple[str, ...]]:
    return [(f"text {number}",) for number in numbers]


@few
@given(ROWS)
def test_no_text_is_on_both_sides_and_every_label_is_trained_on(
    rows: list[tuple[int, str]],
) -> None:
    texts, labels = texts_of([number for number, _ in rows]), [label for _, label in rows]
    held_back = holdout.hold_back(texts, labels)
    trained = sorted(set(range(len(rows))) - set(held_back))
    assert {texts[row] for row in held_back}.isdisjoint(texts[row] for row in trained)
    assert {labels[row] for row in trained} == set(labels)


@few
@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=200))
def test_each_label_gives_a_tenth_and_one_row_at_least(labels: list[str]) -> None:
    held_back = holdout.hold_back(texts_of(list(range(len(labels)))), labels)
    taken = Counter(labels[row] for row in held_back)
    expected = {label: max(1, round(n / 10)) for label, n in Counter(labels).items() if n > 1}
    assert taken == expected


def test_the_same_rows_are_drawn_again_and_from_everywhere() -> None:
    texts = texts_of(list(range(1000)))
    held_back = holdout.hold_back(texts, ["a"] * 1000)
    assert held_back == holdout.hold_back(texts, ["a"] * 1000) == sorted(held_back)
    assert held_back[0] < 100 < 900 < held_back[-1]


@pytest.mark.parametrize(
    ("counts", "total"),
    [({"a": 30_000, "b": 6}, 2000), ({"a": 100, "b": 19}, 12), ({"a": 1, "b": 1}, 0)],
)
def test_quotas_end_at_the_most_rows(counts: dict[str, int], total: int) -> None:
    quotas = holdout.quotas_of(Counter(counts))
    assert sum(quotas.values()) == total
    assert all(quotas[label] >= 1 for label, rows in counts.items() if rows > 1)


def test_texts_are_the_same_whatever_their_case_spaces_and_order() -> None:
    same = [("A  text", "another"), ("another ", "a text"), ("a text", "ANOTHER")]
    assert holdout.hold_back(same, ["a"] * 3) == []
    assert holdout.hold_back([*same, ("third", "text")], ["a"] * 4) == [3]


def test_a_text_with_two_labels_is_trained_on() -> None:
    held_back = holdout.hold_back(texts_of([1, 1, 2, 3]), ["a", "b", "a", "b"])
    assert held_back == [2, 3]


def test_a_row_with_a_label_that_no_other_row_has_is_trained_on() -> None:
    labels = [("a",), ("a", "b"), ("c",), (), ("a",)]
    assert holdout.with_known_labels([1, 2, 3, 4], labels) == [3, 4]
