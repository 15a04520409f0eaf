"""The FastAPI application of a regression."""

from typing import Any

import fastapi

from serve.http.app import ERRORS, create_application, fastapi_response, timeout
from serve.tasks.text_classification.regression.schemas import ColumnValues, Value, ValueRequest
from serve.tasks.text_classification.routes import add_routes, classifier
from serve.tasks.text_classification.schemas import PATH, SENTENCES

DESCRIPTION = "Regression of texts served by Winnow. POST texts to `predict`."
api = create_application(DESCRIPTION, SENTENCES)


@api.post(
    PATH,
    response_model=Value | ColumnValues | list[Value] | list[ColumnValues],
    responses=ERRORS,
)
async def predict(body: ValueRequest, request: fastapi.Request) -> Any:
    """Gives one text, one pair of texts, or each item of a list its number, or several by name."""
    # this route is for the OpenAPI document: the request guard answers the requests themselves
    return fastapi_response(await classifier().predict(await request.body(), timeout(request)))


add_routes(api)
