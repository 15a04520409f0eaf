"""Conversations as rows hold them: lists of messages with a role and content."""

from typing import Any

from jobs.errors import DataError


def is_message(value: object) -> bool:
    """Whether an object is a message of a conversation, and no row."""
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def check_conversation(conversation: Any, name: str) -> None:
    """Raise DataError if training cannot learn from a conversation; `name` is where it stands."""
    is_valid = isinstance(conversation, list) and all(
        isinstance(message, dict)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
        for message in conversation
    )
    if not is_valid or not any(message["role"] == "assistant" for message in conversation):
        shown = str(conversation)[:80]
        raise DataError(
            f"{name}: {shown!r} is not a conversation: a list of messages with a role (system,"
            " user or assistant) and content, at least one of them by the assistant"
        )
