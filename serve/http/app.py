"""The FastAPI application that every task extends: errors, metrics, health, current handler."""

import importlib.resources
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import starlette.exceptions

from serve.http.asgi import Receive, Scope, Send, cancel_on_disconnect
from serve.http.errors import INTERNAL_ERROR, ErrorBody, HttpError, validation_error
from serve.http.guard import REQUEST_ID, RequestGuard, error_response, timeout_of
from serve.http.handler import Handler, HttpResponse, tune_garbage_collector
from serve.http.paths import public_path

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 408, 413, 415, 422, 503, 504)
}

STARTED = int(time.time())
CLIENT_DISCONNECTED = 499
"""Status by which requests are counted whose client did not wait for the answer."""

_current: list[Handler] = []
"""The handler of this process; empty until the model is ready."""


def current_handler() -> Handler | None:
    """Returns the handler of this process; None until it is ready."""
    return _current[-1] if _current else None


def install(handler: Handler) -> None:
    """Makes a handler the one that answers the requests of this process."""
    tune_garbage_collector()
    _current[:] = [handler]


def require_handler() -> Handler:
    """Returns the handler of this process.

    Raises:
        HttpError: 503 until the handler is ready.
    """
    handler = current_handler()
    if handler is None:
        raise HttpError(503, "not_ready", "the model is still being loaded", retry_after_s=1)
    return handler


def create_application(
    description: str, sentences: Mapping[str, str] | None = None
) -> fastapi.FastAPI:
    """Creates an application with the common error body, `/metrics` and the health paths.

    Args:
        description: Description in the OpenAPI document.
        sentences: Messages of validation errors by field; see `describe`.
    """
    api = fastapi.FastAPI(
        title="Winnow endpoint", description=description, version="1", redoc_url=None
    )
    api.state.sentences = sentences or {}
    api.exception_handler(HttpError)(on_http_error)
    api.exception_handler(fastapi.exceptions.RequestValidationError)(on_validation_error)
    api.exception_handler(starlette.exceptions.HTTPException)(on_framework_error)
    api.exception_handler(Exception)(on_exception)
    api.get("/metrics", response_class=fastapi.responses.PlainTextResponse)(metrics)
    api.get("/v2/health/live")(live)
    api.get("/v2/health/ready", responses={503: {"model": ErrorBody}})(is_ready)
    return api


def guarded(api: fastapi.FastAPI) -> RequestGuard:
    """Wraps an application in the request guard: the ASGI application that a server runs."""

    async def at_public_route(scope: Scope, receive: Receive, send: Send) -> None:
        # redirects and the OpenAPI document repeat the path, and a version's own path is temporary
        public = {name: public_path(scope[name]) for name in ("path", "root_path") if name in scope}
        await api({**scope, **public}, receive, send)

    return RequestGuard(at_public_route, current_handler)


def page(package: str) -> fastapi.responses.HTMLResponse:
    """Returns the `page.html` of a task's package with the common style and script inlined."""
    folder = importlib.resources.files("serve.http").joinpath("pages")
    text = importlib.resources.files(package).joinpath("page.html").read_text(encoding="utf-8")
    for part in ("style.css", "common.js"):
        text = text.replace(f"/* {part} */", folder.joinpath(part).read_text(encoding="utf-8"))
    return fastapi.responses.HTMLResponse(text)


async def on_http_error(request: fastapi.Request, error: HttpError) -> fastapi.Response:
    """Renders an error with the common body."""
    return fastapi_response(error_response(error, getattr(request.state, REQUEST_ID, "")))


async def on_validation_error(
    request: fastapi.Request, error: fastapi.exceptions.RequestValidationError
) -> fastapi.Response:
    """Answers 400 or 422 without repeating the input, which FastAPI's own handler repeats."""
    refusal = validation_error(error.errors(), request.app.state.sentences)
    return await on_http_error(request, refusal)


async def on_framework_error(
    request: fastapi.Request, error: starlette.exceptions.HTTPException
) -> fastapi.Response:
    """Answers 404 for an unknown path and 405 for a method that the path does not have."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    detail = str(error.detail)
    refusal = HttpError(error.status_code, code, detail, headers=error.headers)
    return await on_http_error(request, refusal)


async def on_exception(request: fastapi.Request, _: Exception) -> fastapi.Response:
    """Answers 500 without the traceback."""
    return await on_http_error(request, HttpError(500, "internal", INTERNAL_ERROR))


async def metrics() -> fastapi.Response:
    """Metrics of this replica in Prometheus' text format."""
    return fastapi.Response(require_handler().scrape(), media_type=METRICS_TYPE)


async def live() -> dict[str, bool]:
    """Open Inference Protocol: the process is alive."""
    return {"live": True}


async def is_ready() -> dict[str, bool]:
    """Open Inference Protocol: the model is ready; 503 until then."""
    require_handler()
    return {"ready": True}


def timeout(request: fastapi.Request) -> float:
    """Returns the timeout in the request's header, in seconds; infinite if there is none."""
    return timeout_of(dict(request.scope["headers"]))


async def answered(work: Coroutine[Any, Any, HttpResponse], request: fastapi.Request) -> Any:
    """Returns the response of a handler, whose work ends once the client has disconnected."""
    try:
        return fastapi_response(await cancel_on_disconnect(work, request.receive))
    except ConnectionError:
        return gone()


def gone() -> fastapi.Response:
    """Returns the response for a client that has disconnected, which reaches nobody."""
    return fastapi.Response(status_code=CLIENT_DISCONNECTED)


def fastapi_response(response: HttpResponse) -> fastapi.Response:
    """Converts a response into FastAPI's type."""
    return fastapi.Response(response.body, response.status, dict(response.headers))
