"""What a run says while it goes on, as server-sent events; many watchers share one reader."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pydantic_core
import starlette.concurrency

from jobs.errors import WinnowError
from jobs.storage.storage import Storage
from orchestrator.records import run_log, runs, summary
from orchestrator.records.run_log import Line
from orchestrator.records.runs import Run
from orchestrator.records.summary import State

LOOK_S = 1.0
"""How often the files of a watched run are looked at, however many watch it."""
ALIVE_S = 15.0
"""How often a quiet stream sends a comment, so that no proxy closes it."""
SHOWN = 2000
"""Most lines that a stream begins with."""
KEPT_READERS = 50
STEP = re.compile(r"(\d+)/\d+ loss (\S+?),")
"""A line of progress of a fit: step and loss."""
EVALUATION = re.compile(r"step (\d+): (.*)")
"""A remark on an evaluation: step and metrics."""
METRIC = re.compile(r"([\w.@-]+) (-?[\d.]+(?:e[+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of a fit that goes on, from its log: pairs of optimizer step and value."""

    losses: tuple[tuple[int, float], ...]
    metrics: dict[str, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class Said:
    """What a run has said so far."""

    lines: tuple[Line, ...]
    state: State
    events: int
    """Number of events in its journal; when it grows, a stage may have a result."""


@dataclass(slots=True)
class _Followed:
    reader: run_log.Reader
    tags: tuple[str | None, ...] = ()
    said: Said | None = None
    looked_at: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


class Follower:
    """Reads the logs of the runs that somebody watches; safe for several threads."""

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = storage, clock
        self._followed: dict[str, _Followed] = {}
        self._lock = threading.Lock()

    def said(self, run: Run) -> Said:
        """Returns what a run has said, as of at most LOOK_S seconds ago.

        Raises:
            StorageError: if the storage does not answer.
            RunError: if a file of the run is of a newer release.
        """
        with self._lock:
            followed = self._followed.pop(run.id, None) or _Followed(run_log.Reader(run))
            self._followed[run.id] = followed  # the last watched is the last to go
            if len(self._followed) > KEPT_READERS:
                del self._followed[next(iter(self._followed))]
        with followed.lock:
            now = self._clock()
            if followed.said is None or now - followed.looked_at >= LOOK_S:
                followed.said, followed.looked_at = self._look(followed), now
            return followed.said

    def _look(self, followed: _Followed) -> Said:
        run, said = followed.reader.run, followed.said
        found = (
            self._storage.objects.read(f"runs/{run.id}/{name}")
            for name in (runs.JOURNAL, f"{run_log.NAME}.jsonl")
        )
        tags = tuple(each.tag if each else None for each in found)
        lines = said.lines if said else ()
        if tags != followed.tags:
            lines, followed.tags = (*lines, *followed.reader.new()), tags
        return Said(lines, summary.present_state(run), followed.reader.noted)


async def events(follower: Follower, run: Run, after: int) -> AsyncIterator[bytes]:
    """Yields server-sent events with the lines of a run from `after` on, until the run has ended.

    `lines` has the number of the next line and the new lines; `state` has the state and the number
    of events in the journal; `problem` says why the stream ends early.
    """
    told: tuple[State, int] | None = None
    quiet_s = 0.0
    while True:
        try:
            said = await starlette.concurrency.run_in_threadpool(follower.said, run)
        except WinnowError as error:
            yield event("problem", {"error": str(error)})
            return
        new = said.lines[after:][-SHOWN:]
        if new:
            after = len(said.lines)
            yield event("lines", {"next": after, "lines": [_values(line) for line in new]})
        if (said.state, said.events) != told:
            told = said.state, said.events
            yield event("state", {"state": said.state, "events": said.events})
        elif said.state != "running" and not new:
            return
        quiet_s = 0.0 if new else quiet_s + LOOK_S
        if quiet_s >= ALIVE_S:
            quiet_s = 0.0
            yield b": the run goes on\n\n"
        # the last lines may be written after the end is noted
        await asyncio.sleep(LOOK_S if said.state == "running" else run_log.FLUSH_S)


def curves_of(lines: Sequence[Line]) -> Curves:
    """Returns the curves in the log of a fit that has no result yet."""
    losses: dict[int, float] = {}
    metrics: dict[str, dict[int, float]] = {}
    for line in lines:
        step = STEP.match(line.text) if line.stage == "fit" else None
        evaluation = EVALUATION.fullmatch(line.text) if not line.stage else None
        if step and (loss := _number(step[2])) is not None:
            losses[int(step[1])] = loss
        elif evaluation:
            for name, value in METRIC.findall(evaluation[2]):
                metrics.setdefault(name, {})[int(evaluation[1])] = float(value)
    return Curves(
        tuple(sorted(losses.items())),
        {name: tuple(sorted(values.items())) for name, values in metrics.items()},
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _values(line: Line) -> dict[str, str]:
    return {"time": line.time.isoformat(), "stage": line.stage, "text": line.text}


def event(name: str, data: object) -> bytes:
    """Returns a server-sent event; numbers that are not finite become null."""
    return b"event: %s\ndata: %s\n\n" % (
        name.encode(),
        pydantic_core.to_json(data, inf_nan_mode="null"),
    )
