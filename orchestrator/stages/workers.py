"""The worker group that a run keeps between its stages, on one placement at a time."""

import contextlib
import logging
import queue as queues
import threading
import time
from pathlib import Path

import ray.exceptions
import ray.util.queue

from cluster.placement import Placement
from jobs.errors import ClusterError, first_line
from jobs.training.events import WorkersReady
from orchestrator.decisions.measurement import Launch
from orchestrator.decisions.recovery import Cause, Failed
from orchestrator.stages.failures import BusyError, GroupError
from orchestrator.stages.group import DeviceWait, Start, batches, queue_here
from orchestrator.stages.kept_group import Standing, follow
from orchestrator.stages.line import Ended, Line, Waiting
from orchestrator.stages.secrets import Secrets

LOG = logging.getLogger(__name__)
LOOK_S = 0.2
"""How often orders are looked for once the workers have ended."""
CLOSE_S = 40.0
"""How long workers may take to end."""


class _Shift:
    """A placement's workers, from their start to their end."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.is_over, self.leave = threading.Event(), threading.Event()
        self.groups: list[str] = []
        """Hex ids of placement groups."""
        self.is_up = True
        """Whether the workers run or start."""
        self.start_s: float | None = None
        self.thread: threading.Thread | None = None


class Workers:
    """The worker group of a run, which its stages give orders to, one at a time.

    After a failure the next order starts fresh processes. `close` has to be called at the end.
    """

    def __init__(self, secrets: Secrets, storage: Path, wait_s: float) -> None:
        """Starts nothing yet; `wait_s` is how long the workers may wait for devices."""
        self._secrets, self._storage, self._wait_s = secrets, storage, wait_s
        self._line: Line | None = None
        self._shift: _Shift | None = None
        self._launches: list[Launch] = []
        self._lock, self._of_line = threading.RLock(), threading.Lock()
        """The first is held while workers are started or ended, which two threads may do; their own
        thread needs the line meanwhile."""

    @property
    def line(self) -> Line:
        """Gives orders to the workers, from any process of the run."""
        with self._of_line:
            if self._line is None:
                self._line = Line(queue_here(), queue_here())
            return self._line

    @property
    def warm(self) -> str:
        """Name of the placement whose workers run; empty without any."""
        shift = self._shift
        return shift.placement.name if shift and shift.is_up and shift.start_s is not None else ""

    @property
    def groups(self) -> list[str]:
        """Hex ids of the placement groups that are held."""
        return list(self._shift.groups) if self._shift else []

    @property
    def leave(self) -> threading.Event:
        """Once it is set, the workers get the order to save and end."""
        assert self._shift  # there are workers
        return self._shift.leave

    def on(self, placement: Placement, *, is_fresh: bool = False) -> None:
        """Have workers on a placement, which start at once unless they run; with `is_fresh` anew.

        Workers on another placement are ended.
        """
        with self._lock:
            self._on(placement, is_fresh=is_fresh)

    def _on(self, placement: Placement, *, is_fresh: bool) -> None:
        shift = self._shift
        is_lost = shift is not None and (shift.thread is None or not shift.thread.is_alive())
        if shift and not is_fresh and not is_lost and _serves(shift.placement, placement):
            if not shift.is_up:
                shift.placement = placement  # the nodes of the group that failed may be gone
            return
        self.close()
        if is_lost:
            self._line = None  # its queues may be gone
        _clear(self.line.orders)
        shift = self._shift = _Shift(placement)
        shift.thread = threading.Thread(target=self._work, args=(shift,), daemon=True)
        shift.thread.start()

    def keep(self, placement: Placement) -> None:
        """End the workers unless they are on this placement."""
        if self._shift and not _serves(self._shift.placement, placement):
            self.close()

    def serves(self, placement: Placement) -> bool:
        """Returns whether the workers run on this placement."""
        return bool(self.warm and self._shift and _serves(self._shift.placement, placement))

    def close(self) -> None:
        """End the workers, if there are any."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        shift, self._shift = self._shift, None
        if shift is None:
            return
        began, was_ready = time.monotonic(), shift.is_up and shift.start_s is not None
        shift.is_over.set()
        assert shift.thread
        shift.thread.join(CLOSE_S)
        if was_ready:
            end_s = time.monotonic() - began
            self._launches.append(Launch(shift.placement.name, end_s=end_s, is_apart=True))

    def abandon(self) -> None:
        """End the workers, and fail the order that a process of the run still waits for."""
        self.close()
        failed = Failed(Cause.LOST_WORKER, "the run has ended its workers")
        with contextlib.suppress(ray.exceptions.RayError):
            self.line.answers.put(Ended(failed))

    def launches(self) -> list[Launch]:
        """Returns the starts and ends of workers since the last call."""
        found, self._launches = self._launches, []
        return found

    def _work(self, shift: _Shift) -> None:
        """Runs groups on a placement: the next one starts with the first order after a failure."""
        while not shift.is_over.is_set():
            ended = self._group(shift)
            if shift.is_over.is_set():
                return
            shift.is_up = False
            try:
                _clear(self.line.orders)
                self.line.answers.put(ended)
                while self.line.orders.empty() and not shift.is_over.wait(LOOK_S):
                    pass
            except ray.exceptions.RayError:  # the queues or the cluster are gone
                return
            if shift.leave.is_set():
                shift.leave = threading.Event()
            shift.is_up = True

    def _group(self, shift: _Shift) -> Ended:
        """Starts a group and passes on what it reports, until it ends."""
        began, device_wait = time.monotonic(), DeviceWait(self._wait_s, self._log)
        shift.start_s = None
        shift.groups.clear()
        start = Start(
            self._secrets.bound_to(follow),
            Standing(self.line.orders, shift.placement.device),
            shift.placement,
            "kept",
            self._storage,
            on_group=shift.groups.append,
            leave=shift.leave,
            orders=self.line.orders,
            is_over=shift.is_over.is_set,
        )
        try:
            with contextlib.closing(batches(start, device_wait)) as every:
                for batch in every:
                    if shift.start_s is None and WorkersReady() in batch:
                        shift.start_s = time.monotonic() - began - device_wait.waited_s
                        launch = Launch(shift.placement.name, shift.start_s, is_apart=True)
                        self._launches.append(launch)
                    self.line.answers.put(batch)  # together, as each call takes a millisecond
        except GroupError as error:
            return Ended(error.failed)
        except BusyError as error:
            return Ended(busy=str(error))
        except (ClusterError, ray.exceptions.RayError) as error:
            return Ended(Failed(Cause.LOST_NODE, first_line(error)))
        except Exception as error:
            LOG.exception("the workers could not be started")
            return Ended(Failed(Cause.UNKNOWN, first_line(error)))
        return Ended()

    def _log(self, text: str) -> None:
        self.line.answers.put(Waiting(text))


def _serves(kept: Placement, wanted: Placement) -> bool:
    """Returns whether workers on one placement are on another too, which may have more nodes."""
    kinds = [(each.sku, each.workers, each.simulated, each.spot) for each in (kept, wanted)]
    if kinds[0] != kinds[1] or not set(kept.node_ids) <= set(wanted.node_ids):
        return False
    if not wanted.worker_nodes or not kept.worker_nodes:
        return True
    return sorted(kept.worker_nodes) == sorted(wanted.worker_nodes)


def _clear(orders: ray.util.queue.Queue) -> None:
    with contextlib.suppress(queues.Empty):
        while True:
            orders.get_nowait()
