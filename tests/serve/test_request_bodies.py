"""Bodies of requests within an endpoint's limits of bytes and characters."""

import json
import random
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from serve.http.asgi import MAX_BODY_BYTES
from serve.tasks.registry import endpoint_of
from serve.tasks.request_bodies import fitting, grouped

TASKS: Mapping[str, tuple[str, int]] = {
    "text-classification": ("inputs", 8_192),
    "token-classification": ("inputs", 100_000),
    "sentence-embedding": ("input", 8_192),
    "masked-lm": ("inputs", 8_192),
    "seq2seq": ("inputs", 32_768),
}
"""The field and the most characters of a text of each task that takes lists."""
KINDS = ("a", "é", "文", "🎬", "\x00", '"')


def sizes(body: Any) -> list[int]:
    """Bytes of a body as clients send it: in ASCII, and in UTF-8."""
    sent = httpx.Request("POST", "http://test", json=body).content
    return [len(json.dumps(body).encode()), len(sent)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("characters", [8_192, 32_768, 100_000])
def test_a_text_is_cut_to_what_one_request_holds(kind: str, characters: int) -> None:
    found = fitting(kind * 200_000, characters)
    assert max(sizes({"inputs": found})) <= MAX_BODY_BYTES
    assert len(found) == characters or len(json.dumps(found)) > 0.99 * MAX_BODY_BYTES
    assert fitting("short", characters) == "short"


def test_mixed_texts_are_cut_to_what_one_request_holds() -> None:
    text = "a" * 50_000 + "🎬" * 150_000 + "b" * 50_000
    found = fitting(text, 300_000)
    assert text.startswith(found)
    assert max(sizes({"inputs": found})) <= MAX_BODY_BYTES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_every_question_of_the_longest_texts_fits_a_body(task: str, kind: str) -> None:
    field, characters = TASKS[task]
    texts = [fitting(kind * characters, characters)] * 70
    bodies = endpoint_of(task).questions(texts, {})
    assert [text for body in bodies for text in body[field]] == texts
    assert max(size for body in bodies for size in sizes(body)) <= MAX_BODY_BYTES


def test_groups_hold_all_inputs_in_their_order() -> None:
    draw = random.Random(2)
    inputs = [draw.choice(KINDS) * draw.randrange(70_000) for _ in range(90)]
    options = {"user": "x" * 100_000}
    groups = list(grouped(inputs, 7, options))
    assert [each for group in groups for each in group] == inputs
    assert max(map(len, groups)) == 7
    assert max(max(sizes({"inputs": group, **options})) for group in groups) <= MAX_BODY_BYTES


def test_an_input_that_no_request_holds_is_alone() -> None:
    large, odd = "x" * 2 * MAX_BODY_BYTES, {1, 2}
    assert list(grouped(["a", large, odd, "b"], 4)) == [["a"], [large], [odd, "b"]]
    assert list(grouped([], 4)) == []
