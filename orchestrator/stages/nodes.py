"""Requests nodes from Ray's autoscaler, for as long as the requesting run lives."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.autoscaler.sdk
import ray.exceptions

from jobs.errors import ClusterError, first_line
from orchestrator.decisions.demand import Bundle
from orchestrator.stages.devices import ON_HEAD

NAME, NAMESPACE = "nodes", "winnow"
REPLY_S = 60.0
TRIES, RETRY_S = 3, 1.0


class NodeRequests:
    """The node requests of one run, which the autoscaler adds to those of other runs.

    The autoscaler removes nodes that no run requests after the cluster's idle timeout.
    """

    def __init__(self, heartbeat: Any) -> None:
        self._heartbeat, self._key = heartbeat, uuid.uuid4().hex

    def request(self, bundles: Sequence[Bundle]) -> None:
        """Request nodes with room for these bundles, in place of the run's earlier request.

        Raises:
            ClusterError: if the cluster does not accept the request.
        """
        for left in reversed(range(TRIES)):
            requests = _AutoscalerRequests.options(  # type: ignore[attr-defined]  # the decorator is untyped
                name=NAME, namespace=NAMESPACE, lifetime="detached", get_if_exists=True
            ).remote()
            try:
                update = requests.update.remote(self._key, tuple(bundles), self._heartbeat)
                ray.get(update, timeout=REPLY_S)
            except ray.exceptions.RayError as error:
                # the actor ends with the last requesting run, which may have ended just now
                if not left or not isinstance(error, ray.exceptions.ActorDiedError):
                    reason = first_line(error)
                    raise ClusterError(
                        f"Ray's autoscaler did not accept the node request: {reason}"
                    ) from None
                time.sleep(RETRY_S)
            else:
                return


@contextlib.contextmanager
def node_requests() -> Iterator[NodeRequests]:
    """Yield the run's node requests; they end with the block, even if this process is killed."""
    heartbeat = _Heartbeat.remote()  # type: ignore[attr-defined]  # the decorator is untyped
    try:
        yield NodeRequests(heartbeat)
    finally:
        with contextlib.suppress(ray.exceptions.RayError, RuntimeError, ConnectionError):
            ray.kill(heartbeat)


@ray.remote(num_cpus=0, resources=ON_HEAD)
class _Heartbeat:
    """An actor that Ray ends together with the driver that created it."""

    async def wait(self) -> None:
        """Never return: the call fails when the driver has ended."""
        await asyncio.Event().wait()


@ray.remote(num_cpus=0, resources=ON_HEAD)
class _AutoscalerRequests:
    """Merges the requests of all runs of a cluster, because Ray keeps only the last request.

    It also withdraws the request of a run that ended, which Ray would keep for ever.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Sequence[Bundle]] = {}
        self._watches = set[asyncio.Task[None]]()

    async def update(self, key: str, bundles: Sequence[Bundle], heartbeat: Any) -> None:
        """Request a run's bundles until its heartbeat ends."""
        is_new = key not in self._requests
        self._requests[key] = bundles
        self._send()
        if is_new:
            watch = asyncio.create_task(self._withdraw_at_end(key, heartbeat))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    async def _withdraw_at_end(self, key: str, heartbeat: Any) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            await heartbeat.wait.remote()
        del self._requests[key]
        self._send()
        if not self._requests:
            ray.kill(ray.get_runtime_context().current_actor)

    def _send(self) -> None:
        every = [bundle for bundles in self._requests.values() for bundle in bundles]
        ray.autoscaler.sdk.request_resources(
            bundles=[dict(bundle.resources) for bundle in every],
            bundle_label_selectors=[dict(bundle.selector) for bundle in every],
        )
