"""A placement whose devices come and go: found again after a loss, with fewer workers meanwhile."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import ray.exceptions

from cluster import discovery
from cluster import placement as placing
from cluster.placement import Placement
from jobs.errors import ClusterError
from jobs.spec.quantities import format_duration
from jobs.spec.resources import WaitSpec
from orchestrator.stages import devices

REGAIN_S = 20.0
"""How long all devices may take to come back before training goes on with fewer workers."""
GROW_S = 60.0
"""How often it is looked then whether the others are there again."""


def found_again(
    wanted: Placement, counts: Sequence[int], avoid: frozenset[str], wait: WaitSpec
) -> Placement:
    """The placement on nodes that are up, without those to avoid where others suffice.

    With fewer workers, so many of `counts`, when it does not come back within REGAIN_S. Nodes come
    back under new ids. Raises ClusterError when there are too few for too long.
    """
    limit_s, began = wait.timeout.total_seconds(), time.monotonic()
    patience_s = min(REGAIN_S, limit_s / 2)
    while (waited_s := time.monotonic() - began) < limit_s:
        nodes = discovery.discover().nodes
        for found in placing.options(wanted, counts, nodes, avoid):
            is_whole = found.workers == wanted.workers
            if (is_whole or waited_s >= patience_s) and devices.is_free(found):
                return found
        time.sleep(devices.GLANCE_S)
    raise ClusterError(
        f"the devices of {wanted.name} did not come back within {format_duration(wait.timeout)};"
        " go on with --resume when they are there"
    )


class Growth:
    """Looks whether a group with fewer workers than wanted can have all of them again."""

    def __init__(self, wanted: Placement, current: Placement, avoid: frozenset[str]) -> None:
        self._wanted, self._avoid = wanted, avoid
        self._missing = wanted.workers - current.workers
        self._is_up, self._is_over = threading.Event(), threading.Event()
        self.is_due = False
        """Whether the devices of the others were free."""

    def begin(self) -> None:
        """The group has its own devices, so that those that are free are others."""
        self._is_up.set()

    @contextlib.contextmanager
    def watched(self, leave: threading.Event) -> Iterator[None]:
        """Look every GROW_S inside the block, then set `leave`: the group saves and ends."""
        thread = threading.Thread(target=self._look, args=(leave,), daemon=True)
        if self._missing:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._is_up.set()
            if thread.is_alive():
                thread.join()

    def _look(self, leave: threading.Event) -> None:
        self._is_up.wait()
        while not self._is_over.wait(GROW_S):
            with contextlib.suppress(ray.exceptions.RayError):  # told by the group itself
                whole = placing.moved(self._wanted, discovery.discover().nodes, self._avoid)
                if whole and devices.is_free(placing.resized(whole, self._missing)):
                    self.is_due = True
                    leave.set()
                    return
