"""Runs the dashboard's application on a socket until it is interrupted."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from jobs.errors import DeployError
from orchestrator.ui.access import Tokens
from orchestrator.ui.guard import Guard
from serve.http import auth
from serve.http.auth import Owner

DRAIN_S = 2
"""Longest time for open requests after an interrupt; streams of logs would not end."""


def tokens_of(token: str | None, name: str, file: Path | None) -> Tokens:
    """Returns the accepted tokens: one of scope operate, or those of a file.

    Raises:
        DeployError: if the file cannot be read or has no token of the dashboard.
    """
    fixed = {auth.digest(token): Owner(name, "operate")} if token else {}
    return Tokens(fixed, file)


def run(application: Guard, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serves until interrupted; `tell` receives the URL once it listens.

    Raises:
        DeployError: if the address cannot be opened.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise DeployError(
            f"{host}:{port} cannot be opened: {error.strerror}; choose another --port"
        ) from None
    with listening:
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        tell(f"http://{shown}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
        )
        asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
