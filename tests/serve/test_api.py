"""Requests that the endpoint accepts, and its errors for the others."""

import pydantic
import pytest

from serve.http.errors import HttpError, describe, validation_error
from serve.tasks.text_classification.schemas import (
    MAX_CHARACTERS,
    MAX_TEXTS,
    SENTENCES,
    Pair,
    PredictRequest,
    as_texts,
)


def test_one_text_and_lists_become_tuples() -> None:
    assert as_texts("a", is_pair=False) == [("a",)]
    assert as_texts(["a", "b"], is_pair=False) == [("a",), ("b",)]
    assert as_texts(Pair(text="a", text_pair="b"), is_pair=True) == [("a", "b")]


def test_a_pair_for_a_text_model_is_refused_and_the_reverse() -> None:
    with pytest.raises(HttpError, match=r"inputs\[1\] must be a string"):
        as_texts(["a", Pair(text="a", text_pair="b")], is_pair=False)
    with pytest.raises(HttpError, match=r"inputs\[0\] must be .*text_pair"):
        as_texts("a", is_pair=True)


@pytest.mark.parametrize(
    "inputs",
    [[], 3, None, {"text": "a"}, ["a", 3], "x" * (MAX_CHARACTERS + 1), ["x"] * (MAX_TEXTS + 1)],
)
def test_inputs_out_of_bounds_are_refused_in_words_without_the_input(inputs: object) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        PredictRequest.model_validate({"inputs": inputs})
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    words = describe(errors, SENTENCES)
    assert "inputs" in words
    assert "xxxx" not in words


def test_a_body_that_is_not_json_is_400_and_one_that_does_not_fit_422() -> None:
    """Whether FastAPI validates a body or a task parses it itself."""
    found = []
    for body in (b"{", b'{"inputs": 3}'):
        with pytest.raises(pydantic.ValidationError) as caught:
            PredictRequest.model_validate_json(body)
        found.append(validation_error(caught.value.errors(), SENTENCES))
    assert [(each.status, each.code) for each in found] == [
        (400, "invalid_json"),
        (422, "invalid_request"),
    ]
    assert found[1].message == SENTENCES["inputs"]
