"""The runs of a storage, read again only where their journals have changed."""

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType

from jobs.storage.storage import Storage
from orchestrator.records import runs, summary
from orchestrator.records.runs import Run
from orchestrator.records.summary import State, Summary

FRESH_S = 2.0
"""How long a listing is shown again without looking at the storage."""
SEEN_S: Mapping[State, float] = MappingProxyType(
    {"completed": 60.0, "failed": 15.0, "interrupted": 15.0}
)
"""How long a run that has ended, and may be resumed, is not looked at again."""
AT_ONCE = 16
"""Runs of a bucket that are looked at together: each look waits for its answers."""


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
                looked = self._look_at(found, now)
                self._seen = {run.id: seen for run, seen in zip(found, looked, strict=True)}
                self._listed = tuple(self._seen[run.id].summary for run in found)
                self._listed_at = now
            return self._listed

    def _look_at(self, found: Sequence[Run], now: float) -> list[_Seen]:
        if not self._storage.is_bucket:
            return [self._look(run, now) for run in found]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(functools.partial(self._look, now=now), found))

    def _look(self, run: Run, now: float) -> _Seen:
        seen = self._seen.get(run.id)
        if seen and now - seen.at < SEEN_S.get(seen.summary.state, 0.0):
            return seen
        journal = self._storage.objects.read(f"runs/{run.id}/{runs.JOURNAL}")
        tag = journal.tag if journal else None
        if seen is None or seen.tag != tag:
            return _Seen(tag, summary.summarize(run), now)
        if seen.summary.state in summary.ENDED:
            return replace(seen, at=now)
        state = summary.present_state(run)  # a lease can be lost while the journal stays
        return _Seen(tag, replace(seen.summary, state=state), now)
