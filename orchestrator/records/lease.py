"""One owner at a time: a lease that its owner renews, and that others take when it no longer does.

No clocks are compared: who wants a lease watches for as long as it may go without a beat, by its
own clock. An owner that was paused finds out at its next write that it is none any more.
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
"""Silence after which an owner counts as gone."""
LOOK_S = 1.0
"""How often who waits looks."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease, or had it."""

    owner: str | None
    """None once it was given back."""
    epoch: int
    """Grows with each owner."""
    beat: int
    host: str
    process: int
    started: float
    """When the process began, which tells it from a later one of the same number."""
    what: str
    """What the lease is for, in words."""


HOLDER = TypeAdapter(Holder)


class Lease:
    """A lease that is held, and renewed by a thread until it is given back."""

    def __init__(self, objects: Objects, key: str, holder: Holder, tag: str) -> None:
        self._objects, self._key, self._holder, self._tag = objects, key, holder, tag
        self._beaten, self._is_lost = time.monotonic(), False
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    @property
    def epoch(self) -> int:
        """Grows with each owner."""
        return self._holder.epoch

    def check(self) -> None:
        """Raise RunError when another process has the lease by now; StorageError."""
        if not self._is_lost and time.monotonic() - self._beaten > STALE_S / 2:
            self._beat()
        if self._is_lost:
            raise RunError(
                f"another process has taken over {self._holder.what}, because this one gave no"
                f" sign of life for {STALE_S:.0f} s; this one stops"
            )

    def release(self) -> None:
        """Give it back."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(StorageError), self._lock:  # it goes stale by itself
            gone = dataclasses.replace(self._holder, owner=None)
            self._objects.swap(self._key, HOLDER.dump_json(gone), self._tag)

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
def held(objects: Objects, key: str, what: str, tell: Callable[[str], None]) -> Iterator[Lease]:
    """Hold a lease inside the block.

    Raises RunError when another process has it and is alive. `tell` hears of a wait.
    """
    lease = _acquire(objects, key, what, tell)
    try:
        yield lease
    finally:
        lease.release()


def _acquire(objects: Objects, key: str, what: str, tell: Callable[[str], None]) -> Lease:
    while True:
        found = objects.read(key)
        other = _parse(found) if found else None
        if found and other and other.owner and not _is_gone(other):
            tell(f"{what} is held by {_named(other)}; waiting for a sign of life from it")
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
    """Return when there was no beat for long enough; RunError at the first one."""
    deadline = time.monotonic() + STALE_S
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = objects.read(key)
        if now is None or now.tag != found.tag:
            holder = _parse(now) if now else None
            if holder and holder.owner:
                raise RunError(
                    f"{what} is run by {_named(holder)} already; wait for it, or stop it first"
                )
            return  # given back


def _is_gone(holder: Holder) -> bool:
    """Whether its process ran on this machine and runs no more."""
    if holder.host != socket.gethostname():
        return False
    try:
        return abs(psutil.Process(holder.process).create_time() - holder.started) > 1.0
    except psutil.NoSuchProcess:
        return True


def _named(holder: Holder) -> str:
    return f"process {holder.process} on {holder.host}"


def _parse(found: Found) -> Holder | None:
    """None for content that is none, which is replaced."""
    try:
        return HOLDER.validate_json(found.content)
    except ValidationError:
        return None
