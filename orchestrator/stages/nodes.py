"""Asks Ray's autoscaler for nodes, for as long as the asking run lives. Thin shell over Ray."""

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

NAME, NAMESPACE = "nodes", "winnow"
ON_HEAD = {"node:__internal_head__": 0.001}
"""Ray's own mark of the head: what is there goes with no node."""
REPLY_S = 60.0
TRIES, RETRY_S = 3, 1.0


class Asking:
    """What one run asks for: there is to be room for it, beside what other runs ask for.

    Nodes beyond that go when they have been idle for as long as the cluster's own settings say.
    """

    def __init__(self, pulse: Any) -> None:
        self._pulse, self._key = pulse, uuid.uuid4().hex

    def ask(self, bundles: Sequence[Bundle]) -> None:
        """Let there be room for these instead of what was asked for before.

        Raises ClusterError when the cluster does not take the request.
        """
        for left in reversed(range(TRIES)):
            desk = _AutoscalerRequests.options(  # type: ignore[attr-defined]  # the decorator is untyped
                name=NAME, namespace=NAMESPACE, lifetime="detached", get_if_exists=True
            ).remote()
            try:
                ray.get(desk.ask.remote(self._key, tuple(bundles), self._pulse), timeout=REPLY_S)
            except ray.exceptions.RayError as error:
                # the desk ends with the last run that asked, which may have been just now
                if not left or not isinstance(error, ray.exceptions.ActorDiedError):
                    reason = first_line(error)
                    raise ClusterError(
                        f"Ray's autoscaler could not be asked for nodes: {reason}"
                    ) from None
                time.sleep(RETRY_S)
            else:
                return


@contextlib.contextmanager
def asking() -> Iterator[Asking]:
    """All that is asked for is let go at the end, even if this process is killed before."""
    pulse = _Heartbeat.remote()  # type: ignore[attr-defined]  # the decorator is untyped
    try:
        yield Asking(pulse)
    finally:
        with contextlib.suppress(ray.exceptions.RayError, RuntimeError, ConnectionError):
            ray.kill(pulse)


@ray.remote(num_cpus=0, resources=ON_HEAD)
class _Heartbeat:
    """Ends with the driver that began it."""

    async def last(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()


@ray.remote(num_cpus=0, resources=ON_HEAD)
class _AutoscalerRequests:
    """One for a cluster: Ray keeps the last request only, and keeps it for ever."""

    def __init__(self) -> None:
        self._asked: dict[str, Sequence[Bundle]] = {}
        self._watches = set[asyncio.Task[None]]()

    async def ask(self, key: str, bundles: Sequence[Bundle], pulse: Any) -> None:
        """Ask for a run's bundles until its pulse ends."""
        is_new = key not in self._asked
        self._asked[key] = bundles
        self._request()
        if is_new:
            watch = asyncio.create_task(self._until_gone(key, pulse))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    async def _until_gone(self, key: str, pulse: Any) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            await pulse.last.remote()
        del self._asked[key]
        self._request()
        if not self._asked:
            ray.kill(ray.get_runtime_context().current_actor)

    def _request(self) -> None:
        every = [bundle for asked in self._asked.values() for bundle in asked]
        ray.autoscaler.sdk.request_resources(
            bundles=[dict(bundle.resources) for bundle in every],
            bundle_label_selectors=[dict(bundle.selector) for bundle in every],
        )
