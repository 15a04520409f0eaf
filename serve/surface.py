"""The application behind the door: health, protocol v2, metrics, documentation, playground."""

import importlib.resources
from typing import Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import starlette.exceptions

from serve.api import (
    ErrorBody,
    InferRequest,
    InferResponse,
    LabelScore,
    ModelInfo,
    ModelMetadata,
    PredictRequest,
    RefusedError,
    Tensor,
    TensorInfo,
    describe,
    texts_of,
)
from serve.door import Door, refused, timeout_of
from serve.server import Reply, Server

DESCRIPTION = "Text classification served by Winnow. POST texts to `predict`."
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 408, 413, 415, 422, 503, 504)
}

api = fastapi.FastAPI(title="Winnow endpoint", description=DESCRIPTION, version="1", redoc_url=None)

_current: list[Server] = []
"""The server of this process, once it is ready."""


def find() -> Server | None:
    """The server of this process; None until it is ready."""
    return _current[-1] if _current else None


def install(server: Server) -> None:
    """Let this process answer with a server."""
    _current[:] = [server]


def ready() -> Server:
    """The server of this process; RefusedError until it is there."""
    server = find()
    if server is None:
        raise RefusedError(503, "not_ready", "the model is still being loaded", retry_after_s=1)
    return server


application = Door(api, find)
"""What a transport runs."""


@api.exception_handler(RefusedError)
async def refuse(request: fastapi.Request, error: RefusedError) -> fastapi.Response:
    """An error in the one shape."""
    return _response(refused(error, getattr(request.state, "request_id", "")))


@api.exception_handler(fastapi.exceptions.RequestValidationError)
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


@api.exception_handler(starlette.exceptions.HTTPException)
async def refuse_http(
    request: fastapi.Request, error: starlette.exceptions.HTTPException
) -> fastapi.Response:
    """Unknown paths and methods."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
    detail = str(error.detail)
    return await refuse(
        request, RefusedError(error.status_code, code, detail, headers=error.headers)
    )


@api.exception_handler(Exception)
async def refuse_anything(request: fastapi.Request, _: Exception) -> fastapi.Response:
    """No trace reaches a client."""
    return await refuse(request, RefusedError(500, "internal", "something went wrong here"))


@api.post(
    "/predict",
    response_model=LabelScore | list[LabelScore] | list[list[LabelScore]],
    responses=ERRORS,
)
async def predict(body: PredictRequest, request: fastapi.Request) -> Any:
    """Label one text, a pair of texts, or each of a list.

    The headers of the answer say which model version gave it, how long it waited and in company of
    how many texts.
    """
    # described here, answered at the door
    return _response(await ready().predict(await request.body(), _timeout(request)))


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> ModelInfo:
    """Say which model answers."""
    return ready().info


@api.get("/metrics", response_class=fastapi.responses.PlainTextResponse)
async def metrics() -> fastapi.Response:
    """What this replica did, for Prometheus."""
    return fastapi.Response(ready().scrape(), media_type=METRICS_TYPE)


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page for people."""
    page = importlib.resources.files("serve").joinpath("pages/playground.html")
    return fastapi.responses.HTMLResponse(page.read_text(encoding="utf-8"))


@api.get("/v2")
async def server_metadata() -> dict[str, Any]:
    """Open Inference Protocol: the server."""
    return {"name": "winnow", "version": "1", "extensions": []}


@api.get("/v2/health/live")
async def live() -> dict[str, bool]:
    """Open Inference Protocol: whether the process answers."""
    return {"live": True}


@api.get("/v2/health/ready", responses={503: {"model": ErrorBody}})
async def is_ready() -> dict[str, bool]:
    """Open Inference Protocol: whether the model answers."""
    ready()
    return {"ready": True}


@api.get("/v2/models/{name}", responses={404: {"model": ErrorBody}})
async def model_metadata(name: str) -> ModelMetadata:
    """Open Inference Protocol: what the model takes and gives."""
    server = named(name)
    version = server.config.version
    inputs = ("text", "text_pair") if version.is_pair else ("text",)
    return ModelMetadata(
        name=version.name,
        versions=[version.id],
        platform=f"winnow_{server.choice.engine}",
        inputs=[TensorInfo(name=found, datatype="BYTES", shape=[-1]) for found in inputs],
        outputs=[
            TensorInfo(name="label", datatype="BYTES", shape=[-1]),
            TensorInfo(name="score", datatype="FP32", shape=[-1]),
            TensorInfo(name="scores", datatype="FP32", shape=[-1, len(version.labels)]),
        ],
    )


@api.get("/v2/models/{name}/ready", responses={404: {"model": ErrorBody}})
async def model_ready(name: str) -> dict[str, Any]:
    """Open Inference Protocol: whether this model answers."""
    return {"name": named(name).config.version.name, "ready": True}


@api.post("/v2/models/{name}/infer", responses={**ERRORS, 404: {"model": ErrorBody}})
async def infer(name: str, body: InferRequest, request: fastapi.Request) -> InferResponse:
    """Open Inference Protocol: label the texts of the tensor `text`."""
    server = named(name)
    version = server.config.version
    texts = texts_of(body, is_pair=version.is_pair)
    found = (await server.classify(texts, _timeout(request))).scores
    scores = [max(row) for row in found]
    labels = [version.labels[row.index(score)] for row, score in zip(found, scores, strict=True)]
    every = [score for row in found for score in row]
    count = len(texts)
    return InferResponse(
        id=body.id,
        model_name=version.name,
        model_version=version.id,
        outputs=[
            Tensor(name="label", shape=[count], datatype="BYTES", data=labels),
            Tensor(name="score", shape=[count], datatype="FP32", data=scores),
            Tensor(name="scores", shape=[count, len(version.labels)], datatype="FP32", data=every),
        ],
    )


def named(name: str) -> Server:
    """The server, when it is the model that is asked for."""
    server = ready()
    if name != server.config.version.name:
        raise RefusedError(404, "not_found", "no such model answers here")
    return server


def _timeout(request: fastapi.Request) -> float:
    return timeout_of({name: value.decode("latin-1") for name, value in request.scope["headers"]})


def _response(reply: Reply) -> fastapi.Response:
    return fastapi.Response(reply.body, reply.status, dict(reply.headers))
