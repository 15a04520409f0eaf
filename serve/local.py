"""The same application without Ray: one process, for development and small machines."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import uvicorn

from jobs.errors import DeployError
from serve import framework, tasks
from serve.connection import connections
from serve.engines.engine import Trial
from serve.fronts.owner import Fronts
from serve.fronts.wire import bound, new_loop
from serve.routing import CHAT, PREDICT
from serve.server import Server, ServerConfig

DRAIN_S = 20
"""How long requests in flight may take when it is told to end."""


def run(config: ServerConfig, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted; `tell` hears which engine was chosen, and where it answers."""
    server, application = tasks.make(config)
    fronts = framework.install(server)
    path = CHAT
    if isinstance(server, Server):
        for trial in server.choice.trials:
            tell(describe(trial))
        path = PREDICT
    base = f"http://{host}:{port}"
    tell(f"{server.info.engine} answers on {base}{path}; a page for you is at {base}/")
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": "warning",
        "access_log": False,
        "timeout_graceful_shutdown": DRAIN_S,
        "server_header": False,
        "http": connections(framework.find),
    }
    if fronts is None:
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
            runner.run(_behind(fronts, uvicorn.Config(application, **options)))
        finally:
            runner.run(fronts.close())


async def _behind(fronts: Fronts, config: uvicorn.Config) -> None:
    """Serve what fronts at the configured address pass on."""
    own = bound("127.0.0.1", 0, is_shared=False)
    serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[own]))
    await fronts.open(config.host, config.port, f"http://127.0.0.1:{own.getsockname()[1]}")
    await serving


def describe(trial: Trial) -> str:
    """How an engine did, in a line."""
    if trial.refusal:
        return f"  {trial.engine}: refused, {trial.refusal}"
    alone = f"{trial.alone_ms:.1f} ms alone," if trial.alone_ms else "too slow to go on,"
    return (
        f"  {trial.engine}: {trial.texts_per_s:,.0f} texts/s, {alone}"
        f" {trial.agreement:.1%} of the labels as in fp32"
    )
