"""Conversations in rows: lists of messages with a role and content."""

from collections.abc import Iterator, Sequence
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.table import Table

ROLES = ("system", "user", "assistant")


def read(
    table: Table, column: str, name: str, start: int = 0, stop: int | None = None
) -> list[Sequence[Any]]:
    """Returns the conversation of each row from `start` to `stop`.

    `name` stands for the table in errors. A first message of the assistant has no question before
    it, so it counts as a part of the prompt.

    Raises:
        DataError: if a value is not a list of valid messages with an answer.
    """
    values = table.values(column, start, stop)
    for row, value in enumerate(values, start + 1):
        is_valid = isinstance(value, list) and all(map(can_be_used, value))
        if not is_valid or not any(answers(value)):
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, not a list of"
                " messages with a role (system, user or assistant) and content, at least one of"
                " them the assistant's answer to an earlier message"
            )
    return values


def answers(conversation: Sequence[Any]) -> Iterator[int]:
    """Yields the indices of the assistant's messages after the first message; these are trained."""
    return (n for n, message in enumerate(conversation) if n and message["role"] == "assistant")


def is_message(value: object) -> bool:
    """Returns whether an object is a message of a conversation, and not a row."""
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def can_be_used(value: object) -> bool:
    """Returns whether an object is a message with a role and content that training knows."""
    return (
        isinstance(value, dict)
        and value.get("role") in ROLES
        and isinstance(value.get("content"), str)
    )
