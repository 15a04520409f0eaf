"""Serves a model without Ray, in one process, for development and small machines."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import uvicorn

from jobs.errors import DeployError
from serve.config import ReplicaConfig
from serve.engines.engine import EngineResult
from serve.frontends import supervisor as frontends
from serve.frontends.ipc import bound, new_loop
from serve.frontends.supervisor import FrontendSupervisor
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.registry import endpoint_of

DRAIN_S = 20
"""Longest time for open requests after an interrupt."""


def run(config: ReplicaConfig, host: str, port: int, log: Callable[[str], None]) -> None:
    """Serves until interrupted.

    Args:
        config: Configuration of the replica.
        host: Address for HTTP.
        port: Port for HTTP.
        log: Receives a line for each engine, and one with the URL.

    Raises:
        DeployError: if the model cannot be served, or the port is in use.
    """
    endpoint = endpoint_of(config.version.task)
    handler = endpoint.load(config)
    supervisor = frontends.install(handler)
    for result in choice.trials if (choice := getattr(handler, "choice", None)) else ():
        log(describe(result))
    base = f"http://{host}:{port}"
    log(f"{handler.info.engine} answers at {base}{endpoint.path}; try it in a browser at {base}/")
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": "warning",
        "access_log": False,
        "timeout_graceful_shutdown": DRAIN_S,
        "server_header": False,
        "http": connections(app.current_handler),
    }
    application = app.guarded(endpoint.application())
    if supervisor is None:
        uvicorn.run(application, **options)
        return
    try:
        bound(host, port, is_shared=False).close()
    except OSError as error:
        raise DeployError(
            f"{host}:{port} cannot be opened: {error.strerror}; choose another --port"
        ) from None
    with asyncio.Runner(loop_factory=new_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        try:
            runner.run(_serve_behind(supervisor, uvicorn.Config(application, **options)))
        finally:
            runner.run(supervisor.close())


async def _serve_behind(supervisor: FrontendSupervisor, config: uvicorn.Config) -> None:
    """Opens the frontend workers at the configured address, and serves what they forward."""
    replica_socket = bound("127.0.0.1", 0, is_shared=False)
    replica_port = replica_socket.getsockname()[1]
    serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[replica_socket]))
    await supervisor.open(config.host, config.port, f"http://127.0.0.1:{replica_port}")
    await serving


def describe(result: EngineResult) -> str:
    """Describes an engine's result in one line."""
    if result.refusal:
        return f"  {result.engine}: refused, {result.refusal}"
    alone = f"{result.alone_ms:.1f} ms for one text" if result.alone_ms else "too slow to go on"
    return (
        f"  {result.engine}: {result.texts_per_s:,.0f} texts/s, {alone},"
        f" {result.agreement:.1%} of the labels as in training"
    )
