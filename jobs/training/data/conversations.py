"""Conversations in rows: lists of messages with a role and content."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.table import Table

ROLES = ("system", "developer", "user", "assistant", "tool")
Conversation = Sequence[Any]
"""Messages as `message` returns them."""


def read(
    table: Table, column: str, name: str, start: int = 0, stop: int | None = None
) -> list[Conversation]:
    """Returns the conversation of each row from `start` to `stop`.

    `name` stands for the table in errors. A first message of the assistant has no question before
    it, so it counts as a part of the prompt.

    Raises:
        DataError: if a value is not a list of valid messages with an answer.
    """
    found: list[Conversation] = []
    for row, value in enumerate(table.values(column, start, stop), start + 1):
        messages = messages_of(value)
        if messages is None or not any(answers(messages)):
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, not a list of"
                f" messages with a role ({', '.join(ROLES[:-1])} or {ROLES[-1]}) and content, at"
                " least one of them the assistant's answer to an earlier message"
            )
        found.append(messages)
    return found


def tools(
    table: Table, column: str, name: str, start: int = 0, stop: int | None = None
) -> list[list[Any] | None]:
    """Returns the tools of each row, a list of JSON schemas or such a list as JSON; None for none.

    Raises:
        DataError: for other values.
    """
    found: list[list[Any] | None] = []
    for row, value in enumerate(table.values(column, start, stop), start + 1):
        usable = _from_json(value) or None
        if usable is value:
            usable = _without_nulls(value)
        is_list = isinstance(usable, list) and all(isinstance(each, dict) for each in usable)
        if usable is not None and not is_list:
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, not a list of tools as"
                " JSON schemas"
            )
        found.append(usable)
    return found


def messages_of(value: object) -> list[dict[str, Any]] | None:
    """Returns the messages of a value as chat templates take them; None if it is no list of any.

    Content in parts of text is joined, fields without a value are left out, and the arguments of
    tool calls are read where they are JSON.
    """
    if not isinstance(value, list) or not value:
        return None
    found = [_message(each) for each in value]
    return None if None in found else [each for each in found if each is not None]


def answers(conversation: Conversation) -> Iterator[int]:
    """Yields the indices of the assistant's messages after the first message; these are trained."""
    return (n for n, message in enumerate(conversation) if n and message["role"] == "assistant")


def is_message(value: object) -> bool:
    """Returns whether an object is a message of a conversation, and not a row."""
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def _message(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        return None
    calls = _calls(value.get("tool_calls"))
    content = _text(value.get("content"))
    if calls is None or (content is None and not (value["role"] == "assistant" and calls)):
        return None
    kept = {key: each for key, each in value.items() if key not in ("content", "tool_calls")}
    others = {key: _without_nulls(each) for key, each in kept.items() if each is not None}
    return {**others, **({"tool_calls": calls} if calls else {}), "content": content or ""}


def _text(content: object) -> str | None:
    """Returns content as one text; None if it is neither a text nor a list of parts of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None


def _calls(value: object) -> list[Any] | None:
    """Returns the tool calls of a message, perhaps none; None if it is no list of calls."""
    found = _from_json(value) or []
    if not isinstance(found, list) or not all(isinstance(call, dict) for call in found):
        return None
    return [_call(call) for call in found]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool call with its arguments as an object, which most templates write as JSON."""
    made: dict[str, Any] = _without_nulls(call)
    function = made.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        made["function"] = {**function, "arguments": _from_json(function["arguments"])}
    return made


def _from_json(value: object) -> Any:
    """Returns what a text holds as JSON; another value, or another text, is returned itself."""
    try:
        return json.loads(value) if isinstance(value, str) and value else value
    except (ValueError, RecursionError):
        return value


def _without_nulls(value: Any) -> Any:
    """Returns a value without fields that have none, which columns of structures fill rows with."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
