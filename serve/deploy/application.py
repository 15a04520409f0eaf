"""The Ray Serve deployment whose replicas serve one model version."""

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
    """One replica of a model version. Becomes ready after each input width has been run once."""

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
        """Applies `user_config`; Ray Serve calls it at the start and after each change."""
        self._handler.adjust(changes)
        if self._supervisor:
            self._supervisor.adjust(changes)

    async def __del__(self) -> None:
        """Ends the frontend workers; Ray Serve awaits it after the last request of a replica."""
        if self._supervisor:
            await self._supervisor.close()

    def _samples(self) -> Iterator[telemetry.Sample]:
        """Yields the replica's metrics, labelled with its model, version and id."""
        version, replica = self._handler.config.version, ray.serve.get_replica_context().replica_id
        origin = {"model": version.name, "version": version.id, "replica": replica.unique_id}
        for name, value, labels in self._handler.metrics.samples(self._handler.load):
            yield telemetry.Sample(name, value, {**labels, **origin})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the queue and the accelerator of this replica for `scaling.Policy`.

        Ray Serve does not count requests that the fast path and the request guard answer.
        """
        load = self._handler.load
        queue = {"requests": float(load.requests), "backlog_s": load.backlog_s}
        return {**queue, f"{scaling.ON}{self._sku}": 1.0}
