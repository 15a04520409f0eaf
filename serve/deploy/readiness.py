"""Waits until a deployed version answers at its URL, or says why it does not."""

import re
import time
from typing import Any

import httpx
import ray.serve
import ray.serve.config
import ray.serve.exceptions
import ray.serve.schema

from jobs.errors import DeployError, first_line
from serve.frontends import grpc_api

OUR_ERROR = re.compile(r"jobs\.errors\.\w+: (.+)")
"""Matches the message of a Winnow error at the end of Ray's text, which begins with a traceback."""


PORT_IN_USE = re.compile(r"Address already in use\) for \[(?P<place>[^\]]+)\]")
"""Matches HAProxy's message about an address that another process listens on."""
HEALTHY_TIMEOUT_S = 300.0
"""Longest time for an application to select its engine, start its model and answer."""

HEALTH_TIMEOUT_S = 10.0
"""Timeout of one request for an endpoint's health."""
POLL_S = 0.3


def proxy_failure(error: str) -> str:
    """Returns a sentence for Ray Serve's text about a proxy that did not start."""
    taken = PORT_IN_USE.search(error)
    if taken is None:
        lines = error.strip().splitlines() or ["no reason given"]
        return f"Ray Serve's HTTP proxy did not start: {lines[-1].strip()}"
    return (
        f"another process listens on {taken['place']}, where requests of this cluster arrive, such"
        " as the endpoints of another cluster on this machine; stop that process, or let"
        " `winnow up` start a local cluster, which chooses a free port"
    )


def failure_reason(application: Any) -> str:
    """Returns the Winnow error in Ray Serve's status of an application, or Ray Serve's message."""
    texts = "\n".join(str(each.message) for each in application.deployments.values())
    ours = OUR_ERROR.findall(texts)
    return ours[-1] if ours else first_line(application.message)


def wait_until_answering(
    application: str, url: str, version: str, grpc_at: str | None = None
) -> None:
    """Waits until the version answers over HTTP, and over gRPC if an address is given.

    Raises:
        DeployError: if the application fails to start or does not answer within HEALTHY_TIMEOUT_S.
    """
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    with httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
        while time.monotonic() < deadline:
            state = ray.serve.status().applications.get(application)
            if state and state.status.value == "DEPLOY_FAILED":
                raise DeployError(f"{application} did not start: {failure_reason(state)}")
            is_running = state is not None and state.status.value == "RUNNING"
            is_up = is_running and _answering_version(client, url) == version
            if is_up and (not grpc_at or grpc_api.is_ready(grpc_at, application)):
                return
            time.sleep(POLL_S)
    raise DeployError(
        f"{url} did not answer with version {version} within"
        f" {HEALTHY_TIMEOUT_S:.0f} s; see `winnow status` and the logs of Ray Serve"
    )


def _answering_version(client: httpx.Client, url: str) -> str | None:
    try:
        # on a connection of its own: the HAProxy of an older one may have been replaced
        answer = client.get(f"{url}/health", headers={"connection": "close"})
        return str(answer.json()["version"]) if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, KeyError):
        return None
