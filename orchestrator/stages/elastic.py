"""Elastic training: continues with fewer workers after a loss, and grows when devices return."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import ray.exceptions

from cluster import discovery
from cluster import placement as placing
from cluster.placement import Placement
from jobs.errors import ClusterError
from jobs.spec.quantities import format_duration
from jobs.spec.resources import WaitSpec
from orchestrator.decisions.device_queue import COUNTED_S
from orchestrator.decisions.leases import Devices, Taken

REGAIN_S = 10.0
"""How long lost devices may take to return before training continues with fewer workers. Until then
the run holds those that are left, though others may wait for them."""
LOOK_S = 1.0
"""How often lost devices are looked for."""
GROW_S = 60.0
"""How often a group with fewer workers checks for the missing devices."""


def wait_for_devices(
    wanted: Placement,
    counts: Sequence[int],
    avoid: frozenset[str],
    wait: WaitSpec,
    devices: Devices,
    *,
    regains: bool = True,
    on_wait: Callable[[], None] = lambda: None,
) -> Placement:
    """Take devices of the placement or, after REGAIN_S, of one with `counts` workers.

    Returns the placement on the nodes that are up now: a replaced node has a new id. Nodes to avoid
    are used only if the others do not suffice. Without `regains` no device is lost: fewer workers
    do once Ray counts those of the last group as free. `on_wait` is called while others have them.

    Raises:
        ClusterError: if the devices are not free within the job's timeout.
    """
    limit_s, began = wait.timeout.total_seconds(), time.monotonic()
    shrink_after_s = min(REGAIN_S if regains else COUNTED_S, limit_s / 2)
    while (waited_s := time.monotonic() - began) < limit_s:
        options = placing.options(wanted, counts, discovery.discover().nodes, avoid)
        may_shrink = waited_s >= shrink_after_s
        taken = devices.take(options, awaits_first=not may_shrink) if options else None
        if isinstance(taken, Taken) and (may_shrink or taken.option.workers == wanted.workers):
            return taken.placement
        on_wait()
        if not options and may_shrink:
            devices.give_back()
        time.sleep(LOOK_S)
    devices.give_back()
    raise ClusterError(
        f"the devices of {wanted.name} did not return within {format_duration(wait.timeout)};"
        " continue with --resume when they are up"
    )


class Growth:
    """Watches for the missing devices of a group that runs with fewer workers than wanted."""

    def __init__(
        self, wanted: Placement, current: Placement, avoid: frozenset[str], devices: Devices
    ) -> None:
        self._wanted, self._avoid, self._devices = wanted, avoid, devices
        self._missing = wanted.workers - current.workers
        self._is_up, self._is_over = threading.Event(), threading.Event()
        self.is_due = False
        """Whether the missing devices were free, so that the group should restart with all."""

    def begin(self) -> None:
        """Start checking. Call it once the group holds its own devices, which are then not free."""
        self._is_up.set()

    @contextlib.contextmanager
    def watched(self, leave: threading.Event) -> Iterator[None]:
        """Check every GROW_S inside the block; sets `leave`, so that the group saves and ends."""
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
            # the group reports a lost cluster
            with contextlib.suppress(ray.exceptions.RayError, ClusterError):
                whole = placing.moved(self._wanted, discovery.discover().nodes, self._avoid)
                if whole and self._devices.has_room(placing.resized(whole, self._missing)):
                    self.is_due = True
                    leave.set()
                    return
