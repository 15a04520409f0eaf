"""Keeps request bodies within an endpoint's limits of bytes and characters."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serve.http.asgi import MAX_BODY_BYTES

FIELD_BYTES = 256
"""Room for the names of a body's fields, and for what a load test adds."""
SEPARATOR_BYTES = 2


def fitting(text: str, characters: int) -> str:
    """Returns the beginning of a text that one request can hold.

    Args:
        text: Any text.
        characters: Most characters of a text.
    """
    text, room = text[:characters], MAX_BODY_BYTES - FIELD_BYTES
    while (size := _bytes_of(text)) > room:
        text = text[: len(text) * room // size]
    return text


def grouped(
    inputs: Sequence[Any], most: int, options: Mapping[str, Any] | None = None
) -> Iterator[list[Any]]:
    """Yields inputs in order, in lists that one request can hold.

    An input that is too large for any request is a list of its own, which the endpoint refuses.

    Args:
        inputs: Texts, or other values of JSON.
        most: Most inputs of a list.
        options: Further fields of each body.
    """
    room = MAX_BODY_BYTES - FIELD_BYTES - _bytes_of(options or {})
    group, size = list[Any](), 0
    for each in inputs:
        added = _bytes_of(each) + SEPARATOR_BYTES
        if group and (len(group) == most or size + added > room):
            yield group
            group, size = [], 0
        group.append(each)
        size += added
    if group:
        yield group


def _bytes_of(value: Any) -> int:
    """Returns the bytes of a value as JSON in ASCII, the longest form that clients send.

    A value that is not JSON counts nothing: the client that sends it says so.
    """
    try:
        return len(json.dumps(value))
    except (TypeError, ValueError):
        return 0
