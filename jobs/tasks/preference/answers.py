"""Answers of rows as messages, and where two conversations part."""

from collections.abc import Sequence
from typing import Any

from jobs.errors import DataError, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.preference.task import PreferenceData
from jobs.training.data import conversations
from jobs.training.data.table import Table


def read(
    table: Table,
    column: str,
    name: str,
    start: int = 0,
    stop: int | None = None,
    *,
    may_be_text: bool = True,
) -> list[list[Any]]:
    """Returns the messages of each value: a list of them, or a text that the assistant says.

    `name` stands for the table in errors.

    Raises:
        DataError: for other values, and for texts unless `may_be_text`.
    """
    wanted = f"a list of messages with a role ({', '.join(conversations.ROLES)}) and content"
    found = []
    for row, value in enumerate(table.values(column, start, stop), start + 1):
        messages = conversations.messages_of(value)
        if may_be_text and isinstance(value, str) and value:
            messages = [_said(value)]
        if messages is None:
            reason = f"neither a text nor {wanted}" if may_be_text else f"not {wanted}"
            raise DataError(f"{name} row {row}: column {column!r} holds {shown(value)}, {reason}")
        found.append(messages)
    return found


def pairs(
    table: Table, source: SourceSpec, data: PreferenceData, start: int = 0, stop: int | None = None
) -> tuple[list[list[Any]], list[list[Any]], list[int]]:
    """Returns both conversations of each row, and the first message that is not of both."""
    chosen, rejected = (
        read(table, str(name), source.shown, start, stop) for name in (data.chosen, data.rejected)
    )
    if data.messages is not None:
        before = read(table, data.messages, source.shown, start, stop, may_be_text=False)
        for row, asked in enumerate(before, start + 1):
            if asked[-1]["role"] == "assistant":
                raise DataError(
                    f"{source.shown} row {row}: column {data.messages!r} ends with an answer; it"
                    " must end with the question that both answers are to, or remove messages if"
                    " the answers are whole conversations"
                )
        chosen = [[*asked, *said] for asked, said in zip(before, chosen, strict=True)]
        rejected = [[*asked, *said] for asked, said in zip(before, rejected, strict=True)]
    first = [_common(*pair) for pair in zip(chosen, rejected, strict=True)]
    for row, (common, *pair) in enumerate(zip(first, chosen, rejected, strict=True), start + 1):
        if any(not _is_answer(each, common) for each in pair):
            raise DataError(
                f"{source.shown} row {row}: {shown(data.chosen)} and {shown(data.rejected)} must"
                " begin with the same question and part where the assistant answers it"
            )
    return chosen, rejected, first


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many messages both begin with, of all but the last one of each."""
    shared = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    return min(shared, len(one) - 1, len(other) - 1)


def _is_answer(conversation: Sequence[Any], index: int) -> bool:
    return index > 0 and conversation[index]["role"] == "assistant"


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
