"""Requests to end a run early, as a file in the run's folder that its process looks for.

The request goes through the storage, so that any machine that reaches the storage can make it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from jobs.errors import StorageError
from orchestrator.records.runs import Run

FILE = "cancel.json"
"""Name of the request's file in a run's folder."""
LOOK_S = 2.0
"""How often the process of a run looks for a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to end a run."""

    by: str
    """User and host that cancel the run."""
    time: datetime


REQUEST = TypeAdapter(Request)


def request(run: Run, by: str, now: datetime) -> None:
    """Ask the process of a run to save a checkpoint and end; StorageError if that is not stored."""
    run.storage.objects.write(_key(run), REQUEST.dump_json(Request(by, now)))


def requested(run: Run) -> Request | None:
    """Returns the request to end the run, or None; a damaged file counts as none."""
    found = run.storage.objects.read(_key(run))
    with contextlib.suppress(ValidationError):
        return REQUEST.validate_json(found.content) if found else None
    return None


def withdraw(run: Run) -> None:
    """Delete the request, so that the run can go on."""
    run.storage.objects.delete(_key(run))


@contextlib.contextmanager
def watched(run: Run, end: Callable[[Request], bool], look_s: float = LOOK_S) -> Iterator[None]:
    """Call `end` in a thread, inside the block, once the run is asked to end.

    `end` returns False if it cannot end the run yet, and is called again after `look_s` seconds.
    """
    over, lock = threading.Event(), threading.Lock()

    def look() -> None:
        while not over.wait(look_s):
            with contextlib.suppress(StorageError):
                found = requested(run)
                with lock:  # no call after the block, where a signal would hit other work
                    if found and (over.is_set() or end(found)):
                        return

    threading.Thread(target=look, daemon=True, name="cancellation").start()
    try:
        yield
    finally:
        with lock:
            over.set()


def _key(run: Run) -> str:
    return f"runs/{run.id}/{FILE}"
