"""Errors that clients see: one shape for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong, without the input that caused it."""

    code: str
    message: str
    request_id: str = ""


class ErrorBody(BaseModel):
    """The one shape of every error."""

    error: ErrorDetail


class HttpError(Exception):
    """An answer with a status other than 200, and its reason in words."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after_s, self.headers = retry_after_s, dict(headers or {})


def describe(errors: Sequence[Any], sentences: Mapping[str, str]) -> str:
    """The first validation error of a message in words that do not repeat the input.

    `sentences` say what fields of several types must be, where each type has an error of its own.
    """
    first = errors[0]
    field = next((part for part in first["loc"] if part in sentences), None)
    if field and first["type"] not in ("missing", "string_too_long", "too_long"):
        return sentences[field]
    where = ".".join(str(part) for part in first["loc"] if part != "body" and not _is_type(part))
    return f"{where.split('.list[')[0] or 'body'}: {first['msg']}"


def _is_type(part: Any) -> bool:
    """Whether a part of an error's place names a type of a union, such as `str` or a message."""
    return isinstance(part, str) and (part == "str" or part[:1].isupper())
