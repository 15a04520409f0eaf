"""Conversations as rows hold them: lists of messages with a role and content."""

from collections.abc import Iterator, Sequence
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.table import Table

ROLES = ("system", "user", "assistant")


def read(
    table: Table, column: str, name: str, start: int = 0, stop: int | None = None
) -> list[Sequence[Any]]:
    """Returns lists of messages with an answer; `name` stands for the table in errors.

    An assistant's message that comes first answers nobody, and is read as a prompt.

    Raises:
        DataError: for anything else.
    """
    values = table.values(column, start, stop)
    for row, value in enumerate(values, start + 1):
        is_valid = isinstance(value, list) and all(map(_can_be_used, value))
        if not is_valid or not any(answers(value)):
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, not a list of"
                " messages with a role (system, user or assistant) and content, one of them an"
                " answer of the assistant's"
            )
    return values


def answers(conversation: Sequence[Any]) -> Iterator[int]:
    """Numbers of the messages that are learnt, which others come before."""
    return (n for n, message in enumerate(conversation) if n and message["role"] == "assistant")


def is_message(value: object) -> bool:
    """Whether an object is a message of a conversation, and no row."""
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def _can_be_used(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in ROLES
        and isinstance(value.get("content"), str)
    )
