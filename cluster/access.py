"""Refuses Ray clusters without token authentication.

Anyone with network access to such a cluster can run code on it, for example through its jobs API.
"""

import os
from urllib.parse import urlsplit

from jobs.errors import ClusterError

TIMEOUT_S = 5.0
TOKEN_HINT = (
    "if the cluster requires a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token or"
    " RAY_AUTH_TOKEN_PATH to a file with it"
)
"""Added to errors of joining a cluster, because Ray does not always name the token as the cause."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def asks_for_tokens(dashboard: str) -> bool:
    """Returns whether a cluster requires tokens, as its dashboard reports.

    If the dashboard does not answer, the RAY_AUTH_MODE of this process decides.
    """
    import httpx  # takes a tenth of a second, and LOOPBACK is needed without a cluster

    try:
        response = httpx.get(f"{_url(dashboard)}/api/authentication_mode", timeout=TIMEOUT_S)
        return bool(response.json()["authentication_mode"] == "token")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return os.environ.get("RAY_AUTH_MODE") == "token"


def require_tokens(dashboard: str, *, insecure_local: bool) -> None:
    """Refuse a cluster without tokens, except on this machine with `insecure_local`.

    Raises:
        ClusterError: if the cluster requires no token.
    """
    if asks_for_tokens(dashboard):
        return
    host = urlsplit(_url(dashboard)).hostname
    if not insecure_local:
        raise ClusterError(
            f"the Ray cluster at {dashboard} requires no token, so anyone with network access can"
            " run code on it; start it with RAY_AUTH_MODE=token, or add --insecure-local if"
            " only this machine reaches it"
        )
    if host not in LOOPBACK:
        raise ClusterError(
            f"--insecure-local is for clusters on 127.0.0.1, this cluster is on {host}; start it"
            " with RAY_AUTH_MODE=token"
        )


def _url(dashboard: str) -> str:
    return dashboard if "://" in dashboard else f"http://{dashboard}"
