"""Whether a Ray cluster lets anyone in who reaches it, and what is done about that.

Whoever reaches a Ray cluster without tokens runs code on it, also from its jobs API.
"""

import os
from urllib.parse import urlsplit

import httpx

from jobs.errors import ClusterError

TIMEOUT_S = 5.0
TOKEN_HINT = (
    "a cluster that asks for a token wants RAY_AUTH_MODE=token, and its token in RAY_AUTH_TOKEN or"
    " in the file that RAY_AUTH_TOKEN_PATH names"
)
"""What to do where a cluster cannot be joined: Ray does not always say that the token is why."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def asks_for_tokens(dashboard: str) -> bool:
    """Whether a cluster asks for tokens, by its dashboard, or else as this process calls it."""
    try:
        answer = httpx.get(f"{_url(dashboard)}/api/authentication_mode", timeout=TIMEOUT_S)
        return bool(answer.json()["authentication_mode"] == "token")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return os.environ.get("RAY_AUTH_MODE") == "token"


def require_tokens(dashboard: str, *, insecure_local: bool) -> None:
    """Raise ClusterError for an open cluster, unless it is this machine's and that is wanted."""
    if asks_for_tokens(dashboard):
        return
    host = urlsplit(_url(dashboard)).hostname
    if not insecure_local:
        raise ClusterError(
            f"the Ray cluster at {dashboard} lets anyone run code who reaches it; start it with"
            " RAY_AUTH_MODE=token, or add --insecure-local if it is on this machine alone"
        )
    if host not in LOOPBACK:
        raise ClusterError(
            f"--insecure-local is for clusters on 127.0.0.1, and this one is on {host}; start it"
            " with RAY_AUTH_MODE=token"
        )


def _url(dashboard: str) -> str:
    return dashboard if "://" in dashboard else f"http://{dashboard}"
