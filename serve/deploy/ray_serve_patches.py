"""Patches Ray Serve in replicas: installs the fast path, the request guard and frontend workers.

Ray Serve calls `install` because RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it. In a process
without a handler the request guard passes every request on.
"""

import os
from collections.abc import Callable
from typing import Any

import starlette.middleware
import uvicorn.config
from ray.serve._private import default_impl, replica

from cluster import ingress
from serve.frontends import supervisor
from serve.frontends.ipc import bound
from serve.frontends.supervisor import FrontendSupervisor
from serve.http import app
from serve.http.fast_path import connections
from serve.http.guard import RequestGuard

LOOPBACK = "127.0.0.1"
_start = replica.start_asgi_http_server
_add_port, _add_address = replica.add_port_to_grpc_server, default_impl.add_grpc_address


def install() -> list[starlette.middleware.Middleware]:
    """Applies the patches and returns the middleware; called before a replica opens its port."""
    if frontends := supervisor.current():
        _share_port(frontends)
    if ingress.FOLDER in os.environ:  # a local cluster
        default_impl.add_grpc_address = _on_loopback(_add_address)
        replica.add_port_to_grpc_server = _on_loopback(_add_port)
    # Ray Serve's uvicorn uses the connection class "auto"
    uvicorn.config.HTTP_PROTOCOLS["auto"] = connections(app.current_handler)  # type: ignore[assignment]
    return [starlette.middleware.Middleware(RequestGuard, find_handler=app.current_handler)]


def _on_loopback(listen: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Wraps a function of Ray Serve that opens a gRPC port, to open it on loopback only.

    Ray Serve opens gRPC ports, for clients and between replicas, on every address and has no option
    for it.
    """

    def listen_on_loopback(server: Any, address: str) -> Any:
        return listen(server, address.replace("[::]", LOOPBACK))

    return listen_on_loopback


def _share_port(frontends: FrontendSupervisor) -> None:
    """Gives the replica's port to the frontend workers, and another port to Ray Serve's server."""

    async def start_with_frontends(app: Any, http_options: Any, **options: Any) -> Any:
        host, port = http_options.host, http_options.port
        try:
            # fails if another process has the port, even as a shared one
            bound(host, port, is_shared=False).close()
        except OSError as error:
            raise RuntimeError(f"{host}:{port} is in use") from error  # Ray Serve tries the next
        with bound(LOOPBACK, 0, is_shared=False) as free:
            replica_port = free.getsockname()[1]
        server = await _start(
            app, http_options.model_copy(update={"host": LOOPBACK, "port": replica_port}), **options
        )
        await frontends.open(host, port, f"http://{LOOPBACK}:{replica_port}")
        return server

    replica.start_asgi_http_server = start_with_frontends
