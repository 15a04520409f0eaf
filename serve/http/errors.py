"""HTTP errors, which all have the same JSON body."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

INTERNAL_ERROR = "the server failed to answer; the replica's log has the cause"
"""Message of every error 500 whose cause must not reach a client."""


class ErrorDetail(BaseModel):
    """Reason of an error; it repeats nothing of the client's input but a part of a wrong schema."""

    code: str
    message: str
    type: str
    """The kind of error that OpenAI's clients tell apart, by the status."""
    param: str | None = None
    """The field of the request that is wrong, if one is."""
    request_id: str = ""


class ErrorBody(BaseModel):
    """JSON body of every error."""

    error: ErrorDetail


TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Types of errors by status; others are the request's below 500, and the server's from there on."""


class HttpError(Exception):
    """An error response: its status, code, message, wrong field and headers.

    `retry_after_s` becomes the `Retry-After` header, in seconds.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after_s, self.headers = retry_after_s, dict(headers or {})

    def detail(self, request_id: str) -> ErrorDetail:
        """Returns what the body says."""
        kind = TYPES.get(self.status)
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return ErrorDetail(
            code=self.code,
            message=self.message,
            type=kind or usual,
            param=self.param,
            request_id=request_id,
        )


def validation_error(errors: Sequence[Any], sentences: Mapping[str, str]) -> HttpError:
    """Returns the error of a request body that does not fit its model.

    400 if it is not JSON, else 422; see `describe` for the arguments.
    """
    if errors[0]["type"] == "json_invalid":
        return HttpError(400, "invalid_json", "the body is not valid JSON")
    fields = [part for part in errors[0]["loc"] if part != "body"]
    param = fields[0] if fields and isinstance(fields[0], str) else None
    return HttpError(422, "invalid_request", describe(errors, sentences), param=param)


def describe(errors: Sequence[Any], sentences: Mapping[str, str]) -> str:
    """Describes the first validation error of a request without repeating the input.

    Args:
        errors: Validation errors of pydantic.
        sentences: For a field that accepts several types, by its name, the sentence that replaces
            pydantic's one error per type.
    """
    first = errors[0]
    field = next((part for part in first["loc"] if part in sentences), None)
    if field and first["type"] not in ("missing", "string_too_long", "too_long"):
        return sentences[field]
    where = ".".join(str(part) for part in first["loc"] if part != "body" and not _is_type(part))
    return f"{where.split('.list[')[0] or 'body'}: {first['msg']}"


def _is_type(part: Any) -> bool:
    """Returns True for a part of an error's location that names a member of a union type."""
    return isinstance(part, str) and (part == "str" or part[:1].isupper())
