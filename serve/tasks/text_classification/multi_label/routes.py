"""The FastAPI application of a classifier with several labels."""

from typing import Any

import fastapi

from serve.http.app import ERRORS, create_application, fastapi_response, timeout
from serve.tasks.text_classification.routes import add_routes, classifier
from serve.tasks.text_classification.schemas import PATH, SENTENCES, LabelScore, PredictRequest

DESCRIPTION = "Text classification with several labels, served by Winnow. POST texts to `predict`."
api = create_application(DESCRIPTION, SENTENCES)


@api.post(
    PATH,
    response_model=list[LabelScore] | list[list[LabelScore]],
    responses=ERRORS,
)
async def predict(body: PredictRequest, request: fastapi.Request) -> Any:
    """Gives one text, one pair of texts, or each item of a list the labels that suit it.

    These are the labels whose score reaches their threshold, the highest first, and perhaps none;
    with `top_k` so many labels, whatever their scores.
    """
    # this route is for the OpenAPI document: the request guard answers the requests themselves
    return fastapi_response(await classifier().predict(await request.body(), timeout(request)))


add_routes(api)
