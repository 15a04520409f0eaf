"""What the applications of all tasks share: this process's handler, errors, metrics, health."""

import importlib.resources
import time
from collections.abc import Mapping
from typing import Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import starlette.exceptions

from serve.http.errors import ErrorBody, HttpError, describe
from serve.http.guard import Receive, RequestGuard, Scope, Send, refused, timeout_of
from serve.http.handler import Handler, HttpResponse, spare_collector
from serve.http.paths import public_path

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 408, 413, 415, 422, 503, 504)
}

STARTED = int(time.time())

_current: list[Handler] = []
"""The handler of this process, once it is ready."""


def find() -> Handler | None:
    """The handler of this process; None until it is ready."""
    return _current[-1] if _current else None


def install(handler: Handler) -> None:
    """Let this process answer with a handler."""
    spare_collector()
    _current[:] = [handler]


def ready() -> Handler:
    """The handler of this process; HttpError until it is there."""
    handler = find()
    if handler is None:
        raise HttpError(503, "not_ready", "the model is still being loaded", retry_after_s=1)
    return handler


def framework(description: str, sentences: Mapping[str, str] | None = None) -> fastapi.FastAPI:
    """An application with errors in the one shape, metrics, and the protocol's health.

    `sentences`: see `describe`.
    """
    made = fastapi.FastAPI(
        title="Winnow endpoint", description=description, version="1", redoc_url=None
    )
    made.state.sentences = sentences or {}
    made.exception_handler(HttpError)(refuse)
    made.exception_handler(fastapi.exceptions.RequestValidationError)(refuse_invalid)
    made.exception_handler(starlette.exceptions.HTTPException)(refuse_http)
    made.exception_handler(Exception)(refuse_anything)
    made.get("/metrics", response_class=fastapi.responses.PlainTextResponse)(metrics)
    made.get("/v2/health/live")(live)
    made.get("/v2/health/ready", responses={503: {"model": ErrorBody}})(is_ready)
    return made


def guarded(made: fastapi.FastAPI) -> RequestGuard:
    """What a transport runs."""

    async def at_public_route(scope: Scope, receive: Receive, send: Send) -> None:
        # redirects and the OpenAPI document name the path they see, and a version's does not last
        public = {name: public_path(scope[name]) for name in ("path", "root_path") if name in scope}
        await made({**scope, **public}, receive, send)

    return RequestGuard(at_public_route, find)


def page(package: str) -> fastapi.responses.HTMLResponse:
    """The page of a task's package, with style and script of all pages put into it."""
    folder = importlib.resources.files("serve.http").joinpath("pages")
    text = importlib.resources.files(package).joinpath("page.html").read_text(encoding="utf-8")
    for part in ("style.css", "common.js"):
        text = text.replace(f"/* {part} */", folder.joinpath(part).read_text(encoding="utf-8"))
    return fastapi.responses.HTMLResponse(text)


async def refuse(request: fastapi.Request, error: HttpError) -> fastapi.Response:
    """An error in the one shape."""
    return response(refused(error, getattr(request.state, "request_id", "")))


async def refuse_invalid(
    request: fastapi.Request, error: fastapi.exceptions.RequestValidationError
) -> fastapi.Response:
    """Answer without repeating the input, as FastAPI would."""
    errors = list(error.errors())
    if errors[0]["type"] == "json_invalid":
        refusal = HttpError(400, "invalid_json", "the body is not valid JSON")
    else:
        refusal = HttpError(422, "invalid_request", describe(errors, request.app.state.sentences))
    return await refuse(request, refusal)


async def refuse_http(
    request: fastapi.Request, error: starlette.exceptions.HTTPException
) -> fastapi.Response:
    """Unknown paths and methods."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    detail = str(error.detail)
    return await refuse(request, HttpError(error.status_code, code, detail, headers=error.headers))


async def refuse_anything(request: fastapi.Request, _: Exception) -> fastapi.Response:
    """No trace reaches a client."""
    return await refuse(request, HttpError(500, "internal", "something went wrong here"))


async def metrics() -> fastapi.Response:
    """What this replica did, for Prometheus."""
    return fastapi.Response(ready().scrape(), media_type=METRICS_TYPE)


async def live() -> dict[str, bool]:
    """Open Inference Protocol: whether the process answers."""
    return {"live": True}


async def is_ready() -> dict[str, bool]:
    """Open Inference Protocol: whether the model answers."""
    ready()
    return {"ready": True}


def timeout(request: fastapi.Request) -> float:
    """How long the client wants to wait, in seconds."""
    return timeout_of(dict(request.scope["headers"]))


def response(found: HttpResponse) -> fastapi.Response:
    """A response as the framework sends it."""
    return fastapi.Response(found.body, found.status, dict(found.headers))
