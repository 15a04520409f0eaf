"""The FastAPI application of sentence embeddings: vectors, similarities, health, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import app, open_inference
from serve.http.errors import ErrorBody
from serve.tasks.causal_lm.schemas import Model, Models
from serve.tasks.sentence_embedding.handler import EmbeddingHandler
from serve.tasks.sentence_embedding.schemas import (
    OPENAI_PATH,
    PATH,
    SENTENCES,
    SIMILARITY_PATH,
    EmbeddingInfo,
    EmbeddingRequest,
    EmbeddingResponse,
    SimilarityRequest,
)

DESCRIPTION = "Sentence embeddings served by Winnow. POST texts to `embeddings`."
ERRORS: dict[int | str, dict[str, Any]] = {**app.ERRORS, 404: {"model": ErrorBody}}

api = app.create_application(DESCRIPTION, SENTENCES)


def ready() -> EmbeddingHandler:
    """Returns the handler of this process; raises HttpError 503 until it is ready."""
    return cast("EmbeddingHandler", app.require_handler())


@api.post(PATH, response_model=EmbeddingResponse, responses=ERRORS)
@api.post(OPENAI_PATH, response_model=EmbeddingResponse, responses=ERRORS)
async def embed(body: EmbeddingRequest, request: fastapi.Request) -> Any:
    """Returns the vector of one text, or of each of a list, as OpenAI's embeddings.

    The response's headers give the model version, the time in the queue, and the rows of the batch.
    """
    return await app.answered(ready().predict(await request.body(), app.timeout(request)), request)


@api.post(SIMILARITY_PATH, response_model=list[float], responses=app.ERRORS)
async def similarity(body: SimilarityRequest, request: fastapi.Request) -> Any:
    """Returns the cosine of a text with each of others, from -1 to 1."""
    return await app.answered(ready().compare(await request.body(), app.timeout(request)), request)


@api.get("/v1/models")
async def models() -> Models:
    """Lists the models of this endpoint, which is one."""
    return Models(data=[Model(id=ready().config.version.name, created=app.STARTED)])


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> EmbeddingInfo:
    """Describes the model that this endpoint serves."""
    return ready().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return app.page(__package__)


open_inference.add_routes(api)
