"""The same application without Ray: one process, for development and small machines."""

from collections.abc import Callable

import uvicorn

from serve import surface
from serve.engines.choose import Trial
from serve.server import Server, ServerConfig

DRAIN_S = 20
"""How long requests in flight may take when it is told to end."""


def run(config: ServerConfig, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted; `tell` hears which engine was chosen, and where it answers."""
    server = Server(config)
    surface.install(server)
    for trial in server.choice.trials:
        tell(describe(trial))
    tell(f"{server.choice.engine} answers on http://{host}:{port}/predict; a page for you is at /")
    uvicorn.run(
        surface.application,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
    )


def describe(trial: Trial) -> str:
    """How an engine did, in a line."""
    if trial.refusal:
        return f"  {trial.engine}: refused, {trial.refusal}"
    alone = f"{trial.alone_ms:.1f} ms alone," if trial.alone_ms else "too slow to go on,"
    return (
        f"  {trial.engine}: {trial.texts_per_s:,.0f} texts/s, {alone}"
        f" {trial.agreement:.1%} of the labels as in fp32"
    )
