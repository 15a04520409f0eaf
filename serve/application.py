"""The Ray Serve deployment: a server in a replica."""

from typing import Any

import ray.serve

from serve import framework, tasks
from serve.server import ServerConfig


@ray.serve.deployment
@ray.serve.ingress()
class Replica:
    """One copy of a model. Healthy once every width of text was run."""

    def __init__(self, config: ServerConfig) -> None:
        self._server, self._application = tasks.make(config)
        framework.install(self._server)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What waits here; requests that the door answers are not seen by Ray Serve."""
        load = self._server.load
        return {"requests": float(load.requests), "backlog_s": load.backlog_s}
