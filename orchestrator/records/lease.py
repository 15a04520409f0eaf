"""Leases: one process owns a run at a time, and renews its lease until it releases it.

Another process takes a lease over after it was not renewed for STALE_S, measured by its own clock,
so that clocks of machines are never compared. A paused owner gets RunError at its next write.
"""

import contextlib
import dataclasses
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
from pydantic import TypeAdapter, ValidationError

from jobs.errors import RunError, StorageError
from jobs.storage.objects import Found, Objects

BEAT_S = 5.0
"""How often an owner renews its lease."""
STALE_S = 30.0
"""Time without renewal after which an owner counts as dead."""
LOOK_S = 1.0
"""How often a waiting process reads the lease."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The present or last owner of a lease, as stored."""

    owner: str | None
    """Random id of the owner; None once the lease is released."""
    epoch: int
    """Number that grows with each owner."""
    beat: int
    """Number that grows with each renewal."""
    host: str
    process: int
    started: float
    """Start time of the process, which distinguishes it from a later process with the same pid."""
    what: str
    """The leased resource, for messages."""


HOLDER = TypeAdapter(Holder)


class Lease:
    """A lease held by this process, which a thread renews until `release`."""

    def __init__(self, objects: Objects, key: str, holder: Holder, tag: str) -> None:
        self._objects, self._key, self._holder, self._tag = objects, key, holder, tag
        self._beaten, self._is_lost = time.monotonic(), False
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    @property
    def epoch(self) -> int:
        """Number that grows with each owner."""
        return self._holder.epoch

    def check(self) -> None:
        """Check that this process still owns the lease; renews it if that is overdue.

        Raises:
            RunError: if another process has taken it over.
            StorageError: if the storage does not answer.
        """
        if not self._is_lost and time.monotonic() - self._beaten > STALE_S / 2:
            self._beat()
        if self._is_lost:
            raise RunError(
                f"another process has taken over {self._holder.what}, because this process did not"
                f" renew its lease for {STALE_S:.0f} s; this process stops"
            )

    def release(self) -> None:
        """Release the lease, so that another process can take it at once."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(StorageError), self._lock:  # else it expires after STALE_S
            released = dataclasses.replace(self._holder, owner=None)
            self._objects.swap(self._key, HOLDER.dump_json(released), self._tag)

    def _keep(self) -> None:
        while not self._over.wait(BEAT_S) and not self._is_lost:
            with contextlib.suppress(StorageError):
                self._beat()

    def _beat(self) -> None:
        with self._lock:
            began = time.monotonic()
            holder = dataclasses.replace(self._holder, beat=self._holder.beat + 1)
            tag = self._objects.swap(self._key, HOLDER.dump_json(holder), self._tag)
            if tag is None:
                self._is_lost = True
            else:
                self._holder, self._tag, self._beaten = holder, tag, began


@contextlib.contextmanager
def held(objects: Objects, key: str, what: str, log: Callable[[str], None]) -> Iterator[Lease]:
    """Hold a lease inside the block; `log` gets a sentence if it has to wait.

    Raises:
        RunError: if another process owns the lease and renews it.
    """
    lease = _acquire(objects, key, what, log)
    try:
        yield lease
    finally:
        lease.release()


def holder(objects: Objects, key: str) -> Holder | None:
    """Returns the present or last owner of a lease; None if it was never held or is damaged."""
    found = objects.read(key)
    return _parse(found) if found else None


def is_gone(holder: Holder) -> bool:
    """Returns whether the owner was a process of this machine that has ended."""
    if holder.host != socket.gethostname():
        return False
    try:
        return abs(psutil.Process(holder.process).create_time() - holder.started) > 1.0
    except psutil.NoSuchProcess:
        return True


def _acquire(objects: Objects, key: str, what: str, log: Callable[[str], None]) -> Lease:
    while True:
        found = objects.read(key)
        other = _parse(found) if found else None
        if found and other and other.owner and not is_gone(other):
            log(f"{what} is held by {_named(other)}; waiting to see whether it still runs")
            _watch(objects, key, found, other, what)
        me = psutil.Process()
        holder = Holder(
            owner=secrets.token_hex(8),
            epoch=other.epoch + 1 if other else 1,
            beat=0,
            host=socket.gethostname(),
            process=me.pid,
            started=me.create_time(),
            what=what,
        )
        tag = objects.swap(key, HOLDER.dump_json(holder), found.tag if found else None)
        if tag:
            return Lease(objects, key, holder, tag)


def _watch(objects: Objects, key: str, found: Found, other: Holder, what: str) -> None:
    """Return once the lease is released or was not renewed for STALE_S.

    Raises:
        RunError: if its owner renews it.
    """
    deadline = time.monotonic() + STALE_S
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = objects.read(key)
        if now is None or now.tag != found.tag:
            holder = _parse(now) if now else None
            if holder and holder.owner:
                raise RunError(
                    f"{_named(holder)} already runs {what}; wait until it ends, or stop it"
                )
            return  # released


def _named(holder: Holder) -> str:
    return f"process {holder.process} on {holder.host}"


def _parse(found: Found) -> Holder | None:
    """Returns the stored owner; None for damaged content, which the caller replaces."""
    try:
        return HOLDER.validate_json(found.content)
    except ValidationError:
        return None
