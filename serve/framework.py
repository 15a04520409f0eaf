"""What applications share: the server of this process, errors in one shape, metrics, health."""

import importlib.resources
import time
from typing import Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import starlette.exceptions

from serve.api import ErrorBody, RefusedError, describe
from serve.door import Door, Receive, Scope, Send, refused, timeout_of
from serve.fronts.owner import Fronts, fronts_of
from serve.routing import public_path
from serve.server import Answering, Reply, spare_collector

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 408, 413, 415, 422, 503, 504)
}

STARTED = int(time.time())

_current: list[Answering] = []
"""The server of this process, once it is ready."""
_fronts: list[Fronts] = []
"""What stands before it."""


def find() -> Answering | None:
    """The server of this process; None until it is ready."""
    return _current[-1] if _current else None


def fronts() -> Fronts | None:
    """What stands before the server of this process."""
    return _fronts[-1] if _fronts else None


def install(server: Answering) -> Fronts | None:
    """Let this process answer with a server; its fronts, if it shall have some, to be opened."""
    spare_collector()
    _current[:] = [server]
    found = fronts_of(server)
    _fronts[:] = [found] if found else []
    return found


def ready() -> Answering:
    """The server of this process; RefusedError until it is there."""
    server = find()
    if server is None:
        raise RefusedError(503, "not_ready", "the model is still being loaded", retry_after_s=1)
    return server


def framework(description: str) -> fastapi.FastAPI:
    """An application with errors in the one shape, metrics, and the protocol's health."""
    made = fastapi.FastAPI(
        title="Winnow endpoint", description=description, version="1", redoc_url=None
    )
    made.exception_handler(RefusedError)(refuse)
    made.exception_handler(fastapi.exceptions.RequestValidationError)(refuse_invalid)
    made.exception_handler(starlette.exceptions.HTTPException)(refuse_http)
    made.exception_handler(Exception)(refuse_anything)
    made.get("/metrics", response_class=fastapi.responses.PlainTextResponse)(metrics)
    made.get("/v2/health/live")(live)
    made.get("/v2/health/ready", responses={503: {"model": ErrorBody}})(is_ready)
    return made


def guarded(made: fastapi.FastAPI) -> Door:
    """What a transport runs."""

    async def at_public_route(scope: Scope, receive: Receive, send: Send) -> None:
        # redirects and the OpenAPI document name the path they see, and a version's does not last
        public = {name: public_path(scope[name]) for name in ("path", "root_path") if name in scope}
        await made({**scope, **public}, receive, send)

    return Door(at_public_route, find)


def page(name: str) -> fastapi.responses.HTMLResponse:
    """A page for people, with what pages share put into it: it stands under any route."""
    folder = importlib.resources.files("serve").joinpath("pages")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for part in ("style.css", "common.js"):
        text = text.replace(f"/* {part} */", folder.joinpath(part).read_text(encoding="utf-8"))
    return fastapi.responses.HTMLResponse(text)


async def refuse(request: fastapi.Request, error: RefusedError) -> fastapi.Response:
    """An error in the one shape."""
    return response(refused(error, getattr(request.state, "request_id", "")))


async def refuse_invalid(
    request: fastapi.Request, error: fastapi.exceptions.RequestValidationError
) -> fastapi.Response:
    """Answer without repeating the input, as FastAPI would."""
    errors = list(error.errors())
    if errors[0]["type"] == "json_invalid":
        refusal = RefusedError(400, "invalid_json", "the body is not valid JSON")
    else:
        refusal = RefusedError(422, "invalid_request", describe(errors))
    return await refuse(request, refusal)


async def refuse_http(
    request: fastapi.Request, error: starlette.exceptions.HTTPException
) -> fastapi.Response:
    """Unknown paths and methods."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    detail = str(error.detail)
    return await refuse(
        request, RefusedError(error.status_code, code, detail, headers=error.headers)
    )


async def refuse_anything(request: fastapi.Request, _: Exception) -> fastapi.Response:
    """No trace reaches a client."""
    return await refuse(request, RefusedError(500, "internal", "something went wrong here"))


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


def response(reply: Reply) -> fastapi.Response:
    """A reply as the framework sends it."""
    return fastapi.Response(reply.body, reply.status, dict(reply.headers))
