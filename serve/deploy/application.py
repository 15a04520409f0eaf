"""The Ray Serve deployment: a server in a replica."""

from collections.abc import Iterator
from typing import Any

import ray.serve

from cluster import discovery, telemetry
from serve.config import ReplicaConfig
from serve.deploy import scaling
from serve.frontends import supervisor
from serve.frontends.grpc_api import GrpcSurface
from serve.http import app
from serve.tasks.registry import endpoint_of


@ray.serve.deployment
@ray.serve.ingress()
class Replica(GrpcSurface):
    """One copy of a model. Healthy once every width of text was run."""

    def __init__(self, config: ReplicaConfig) -> None:
        endpoint = endpoint_of(config.version.task)
        self._handler = endpoint.load(config)
        self._application = app.guarded(endpoint.application())
        self._supervisor = supervisor.install(self._handler)
        self._sku = discovery.own_sku()
        telemetry.publish_regularly(self._samples)

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    def reconfigure(self, changes: dict[str, Any]) -> None:
        """Ray Serve calls this with a new replica, and when `user_config` changed."""
        self._handler.adjust(changes)
        if self._supervisor:
            self._supervisor.adjust(changes)

    async def __del__(self) -> None:
        """Ray Serve awaits this once a replica that ends has answered what it had."""
        if self._supervisor:
            await self._supervisor.close()

    def _samples(self) -> Iterator[telemetry.Sample]:
        """What this replica counts, with whose counts they are."""
        version, replica = self._handler.config.version, ray.serve.get_replica_context().replica_id
        own = {"model": version.name, "version": version.id, "replica": replica.unique_id}
        for name, value, labels in self._handler.metrics.samples(self._handler.load):
            yield telemetry.Sample(name, value, {**labels, **own})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What waits here, and on what; Ray Serve does not see requests that the door answers."""
        load = self._handler.load
        own = {"requests": float(load.requests), "backlog_s": load.backlog_s}
        return {**own, f"{scaling.ON}{self._sku}": 1.0}
