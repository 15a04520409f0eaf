"""The same application without Ray: one process, for development and small machines."""

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
"""How long requests in flight may take when it is told to end."""


def run(config: ReplicaConfig, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted; `tell` hears which engine was chosen, and where it answers."""
    endpoint = endpoint_of(config.version.task)
    handler = endpoint.load(config)
    supervisor = frontends.install(handler)
    for trial in choice.trials if (choice := getattr(handler, "choice", None)) else ():
        tell(describe(trial))
    base = f"http://{host}:{port}"
    tell(f"{handler.info.engine} answers on {base}{endpoint.path}; a page for you is at {base}/")
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
            f"{host}:{port} cannot be listened at: {error.strerror}; choose another --port"
        ) from None
    with asyncio.Runner(loop_factory=new_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        try:
            runner.run(_behind(supervisor, uvicorn.Config(application, **options)))
        finally:
            runner.run(supervisor.close())


async def _behind(supervisor: FrontendSupervisor, config: uvicorn.Config) -> None:
    """Serve what supervisor at the configured address pass on."""
    own = bound("127.0.0.1", 0, is_shared=False)
    serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[own]))
    await supervisor.open(config.host, config.port, f"http://127.0.0.1:{own.getsockname()[1]}")
    await serving


def describe(trial: EngineResult) -> str:
    """How an engine did, in a line."""
    if trial.refusal:
        return f"  {trial.engine}: refused, {trial.refusal}"
    alone = f"{trial.alone_ms:.1f} ms alone," if trial.alone_ms else "too slow to go on,"
    return (
        f"  {trial.engine}: {trial.texts_per_s:,.0f} texts/s, {alone}"
        f" {trial.agreement:.1%} of the labels as in fp32"
    )
