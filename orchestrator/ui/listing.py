"""The runs of a storage, read again only where their journals have changed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.storage.storage import Storage
from orchestrator.records import runs, summary
from orchestrator.records.runs import Run
from orchestrator.records.summary import Summary

FRESH_S = 2.0
"""How long a listing is shown again without looking at the storage."""
COMPLETED_S = 60.0
"""How long a completed run, which hardly ever goes on, is not looked at again."""


@dataclass(frozen=True, slots=True)
class _Seen:
    tag: str | None
    """Tag of the journal, which grows with everything that a summary shows except the state."""
    summary: Summary
    at: float


class RunList:
    """Lists the runs of a storage; safe for several threads."""

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = storage, clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._listed: tuple[Summary, ...] = ()
        self._listed_at = float("-inf")

    def every(self) -> tuple[Summary, ...]:
        """Returns all runs, newest first, as they were at most FRESH_S seconds ago.

        Raises:
            StorageError: if the storage does not answer.
        """
        with self._lock:
            now = self._clock()
            if now - self._listed_at >= FRESH_S:
                found = runs.every(self._storage)
                self._seen = {run.id: self._look(run, now) for run in found}
                self._listed = tuple(self._seen[run.id].summary for run in found)
                self._listed_at = now
            return self._listed

    def _look(self, run: Run, now: float) -> _Seen:
        seen = self._seen.get(run.id)
        if seen and seen.summary.state == "completed" and now - seen.at < COMPLETED_S:
            return seen
        journal = self._storage.objects.read(f"runs/{run.id}/{runs.JOURNAL}")
        tag = journal.tag if journal else None
        if seen is None or seen.tag != tag:
            return _Seen(tag, summary.summarize(run), now)
        if seen.summary.state in summary.ENDED:
            return replace(seen, at=now)
        state = summary.present_state(run)  # a lease can be lost while the journal stays
        return _Seen(tag, replace(seen.summary, state=state), now)
