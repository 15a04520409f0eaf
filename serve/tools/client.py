"""Asking an endpoint over HTTP, and what it answers as values."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from jobs.errors import DeployError, RequestError, first_line, shown
from jobs.spec.task_registry import DEFAULT_TASK
from serve.tasks.answers import Prediction
from serve.tasks.registry import endpoint_of


def predict(
    url: str,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    *,
    token: str | None = None,
    timeout_s: float = 30.0,
) -> list[Prediction]:
    """The predictions for n inputs, in their order.

    Args:
        url: Of the endpoint's route.
        inputs: n times what the endpoint's task takes.
        options: Further fields of each request.
        token: Bearer token, where the endpoint asks for one.
        timeout_s: Longest time for each request.

    Raises:
        DeployError: if nothing answers, or something that is no endpoint of ours.
        RequestError: if the endpoint refuses a request.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    base = url.rstrip("/")
    with httpx.Client(headers=headers, timeout=timeout_s) as client:
        model = _reply(client, "GET", f"{base}/health", None)
        if not isinstance(model, dict):
            raise _stranger(base)
        endpoint = endpoint_of(model.get("task", DEFAULT_TASK))
        found: list[Prediction] = []
        for body in endpoint.questions(inputs, options):
            reply = _reply(client, "POST", f"{base}{endpoint.path}", body)
            try:
                found += endpoint.predictions(reply)
            except (KeyError, TypeError, ValueError):
                raise _stranger(base) from None
    return found


def _reply(client: httpx.Client, method: str, url: str, body: Any) -> Any:
    """The JSON of an answer."""
    try:
        answer = client.request(method, url, json=body)
    except httpx.TimeoutException:
        limit_s = client.timeout.read
        raise DeployError(f"{url} gave no answer within {limit_s:g} s; allow more") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DeployError(
            f"{url} cannot be reached: {first_line(error)}; `winnow status` lists the endpoints"
        ) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"inputs cannot be sent as JSON: {first_line(error)}") from None
    try:
        found = answer.json()
    except ValueError:
        raise _stranger(url, answer.status_code) from None
    if answer.status_code != httpx.codes.OK:
        raise RequestError(f"{url} refused the request with {_reason(answer.status_code, found)}")
    return found


def _reason(status: int, found: Any) -> str:
    """Status and message of an error."""
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"{status}: {message}" if message else str(status)


def _stranger(url: str, status: int | None = None) -> DeployError:
    seen = f" (status {status})" if status else ""
    return DeployError(
        f"{shown(url)[1:-1]} does not answer as an endpoint of Winnow{seen}; give the URL of a"
        " route, such as http://127.0.0.1:8000/reviews"
    )
