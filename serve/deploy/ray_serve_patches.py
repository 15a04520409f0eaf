"""Puts the hot path and the door ahead of Ray Serve's own wrapper, in replicas that take requests.

Named by RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH. In processes without a server it lets all pass.
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
    """The middleware that Ray Serve asks for, just before a replica opens its port."""
    if found := supervisor.current():
        _share(found)
    if ingress.FOLDER in os.environ:  # the cluster is of this machine alone
        default_impl.add_grpc_address = _here(_add_address)
        replica.add_port_to_grpc_server = _here(_add_port)
    # Ray Serve leaves it to uvicorn what a connection is
    uvicorn.config.HTTP_PROTOCOLS["auto"] = connections(app.current_handler)  # type: ignore[assignment]
    return [starlette.middleware.Middleware(RequestGuard, find_handler=app.current_handler)]


def _here(listen: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The same on loopback: of gRPC Ray Serve listens at every address, and cannot be told not to.

    That is what clients ask, and what replicas ask each other, in every replica.
    """

    def listen_here(server: Any, address: str) -> Any:
        return listen(server, address.replace("[::]", LOOPBACK))

    return listen_here


def _share(frontends: FrontendSupervisor) -> None:
    """Let fronts have the replica's port. Ray Serve's own server gets one that they pass on to."""

    async def sharing(app: Any, http_options: Any, **options: Any) -> Any:
        host, port = http_options.host, http_options.port
        try:
            bound(host, port, is_shared=False).close()  # a stranger's shared port is not ours
        except OSError as error:
            raise RuntimeError(f"{host}:{port} is taken") from error  # Ray Serve tries the next
        with bound(LOOPBACK, 0, is_shared=False) as free:
            own = free.getsockname()[1]
        begun = await _start(
            app, http_options.model_copy(update={"host": LOOPBACK, "port": own}), **options
        )
        await frontends.open(host, port, f"http://{LOOPBACK}:{own}")
        return begun

    replica.start_asgi_http_server = sharing
