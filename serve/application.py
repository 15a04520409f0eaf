"""The Ray Serve deployment: a server in a replica."""

from typing import Any

import ray.serve

from serve import surface
from serve.server import Server, ServerConfig


@ray.serve.deployment
@ray.serve.ingress()
class Replica:
    """One copy of a model. Healthy once every width of text was run."""

    def __init__(self, config: ServerConfig) -> None:
        self._server = Server(config)
        surface.install(self._server)

    def __serve_build_asgi_app__(self) -> Any:
        # the module's own application, because the hook looks for its server in the same module
        return surface.application

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What waits here; requests that the door answers are not seen by Ray Serve."""
        load = self._server.batcher.load
        return {"requests": float(load.requests), "backlog_s": load.backlog_s}
