"""The Ray Serve deployment: a server in a replica."""

from collections.abc import Iterator
from typing import Any

import ray.serve

from cluster import discovery, telemetry
from serve import framework, scaling, tasks
from serve.grpc_surface import GrpcSurface
from serve.server import ServerConfig


@ray.serve.deployment
@ray.serve.ingress()
class Replica(GrpcSurface):
    """One copy of a model. Healthy once every width of text was run."""

    def __init__(self, config: ServerConfig) -> None:
        self._server, self._application = tasks.make(config)
        self._fronts = framework.install(self._server)
        self._sku = discovery.own_sku()
        telemetry.keep_telling(self._samples)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def reconfigure(self, changes: dict[str, Any]) -> None:
        """Ray Serve calls this with a new replica, and when `user_config` changed."""
        self._server.adjust(changes)
        if self._fronts:
            self._fronts.adjust(changes)

    async def __del__(self) -> None:
        """Ray Serve awaits this once a replica that ends has answered what it had."""
        if self._fronts:
            await self._fronts.close()

    def _samples(self) -> Iterator[telemetry.Sample]:
        """What this replica counts, with whose counts they are."""
        version, replica = self._server.config.version, ray.serve.get_replica_context().replica_id
        own = {"model": version.name, "version": version.id, "replica": replica.unique_id}
        for name, value, labels in self._server.metrics.samples(self._server.load):
            yield telemetry.Sample(name, value, {**labels, **own})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What waits here, and on what; Ray Serve does not see requests that the door answers."""
        load = self._server.load
        own = {"requests": float(load.requests), "backlog_s": load.backlog_s}
        return {**own, f"{scaling.ON}{self._sku}": 1.0}
