"""The log of a run: the notices that its console shows, kept beside its journal."""

import contextlib
import heapq
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from jobs.errors import RunError, StorageError
from orchestrator.notices import Notice, Notify, Pace, Progress, Remark, StageFinished, StageStarted
from orchestrator.records.runs import Run

NAME = "log"
"""Name of the record in the run's folder."""
FLUSH_S = 2.0
"""How often new lines are written; one at a time would let training wait for a slow storage."""
PROGRESS_EVERY_S = 30.0
"""Shortest time between two lines of progress of a stage."""
GOES_ON, DONE = " …", "✓ "
"""End of the line of a stage that has started, and beginning of that of one that has a result."""
PROGRESS = re.compile(r"(\d+)/(\d+) ?(.*)")
"""A line of progress: what is done, of how much, and what is told of it."""
EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "created": "created",
        "resumed": "resumed",
        "finished": "{stage} is recorded",
        "failure": "{message}: {done}",
        "accepted": "goes on though these changed: {changes}",
        "damaged": "{lines} damaged lines of {file} are left out",
        "interrupted": "interrupted",
        "failed": "failed: {error}",
        "completed": "completed",
    }
)
"""Sentence of each event of a journal."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a run's log or journal."""

    time: datetime
    stage: str
    """Empty for a line of no stage."""
    text: str
    is_result: bool = False
    """Whether a line of progress is a result, such as that of a probe."""


@contextlib.contextmanager
def kept(run: Run, notify: Notify, flush_s: float = FLUSH_S) -> Iterator[Notify]:
    """Inside the block, the yielded function passes notices on and keeps them in the run's log.

    A line that cannot be written is tried again, and is lost if the storage fails until the end.
    """
    waiting, lock, over = list[Line](), threading.Lock(), threading.Event()
    pace = Pace(PROGRESS_EVERY_S, time.monotonic)

    def tell(notice: Notice) -> None:
        notify(notice)
        if said := line_of(notice, datetime.now(UTC), pace):
            waiting.append(said)

    def flush() -> None:
        with lock, contextlib.suppress(StorageError, RunError):  # the run's own writes raise them
            while waiting:
                run.append(NAME, waiting[0])
                del waiting[0]

    def write() -> None:
        while not over.wait(flush_s):
            flush()

    thread = threading.Thread(target=write, daemon=True, name="run log")
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join()
        flush()


def line_of(notice: Notice, now: datetime, pace: Pace) -> Line | None:
    """Returns a notice as a line; None for progress that follows an earlier line too soon."""
    match notice:
        case StageStarted(stage, text):
            return Line(now, stage, f"{text or 'started'}{GOES_ON}")
        case Progress(stage, done, total, text, is_result):
            is_due = pace.is_due(stage, is_last=done == total or is_result)
            line = Line(now, stage, f"{done}/{total} {text}".rstrip(), is_result)
            return line if is_due else None
        case StageFinished(stage, text):
            return Line(now, stage, f"{DONE}{text}")
        case Remark(text):
            return Line(now, "", text)


def notice_of(line: Line) -> Notice:
    """Returns the notice that a line was made of."""
    if not line.stage:
        return Remark(line.text)
    if found := PROGRESS.fullmatch(line.text):
        return Progress(line.stage, int(found[1]), int(found[2]), found[3], line.is_result)
    if line.text.startswith(DONE):
        return StageFinished(line.stage, line.text.removeprefix(DONE))
    return StageStarted(line.stage, line.text.removesuffix(GOES_ON))


def journal_line(note: Mapping[str, str]) -> Line | None:
    """Returns an event of a run's journal as a line; None for events that say nothing to users."""
    text = EVENTS.get(note["event"])
    if text is None:
        return None
    by = f" by {note['by']}" if "by" in note else ""
    return Line(datetime.fromisoformat(note["time"]), "", text.format_map(note) + by)


@dataclass(slots=True)
class Reader:
    """Reads the lines of a run that it has not returned yet."""

    run: Run
    logged: int = 0
    """Lines of the log that were returned."""
    noted: int = 0
    """Events of the journal that were read."""

    def new(self) -> list[Line]:
        """Returns the lines since the last call, from log and journal, in the order of time."""
        notes, logged = self.run.notes, self.run.intact(NAME, Line)
        told = [line for note in notes[self.noted :] if (line := journal_line(note))]
        lines = heapq.merge(told, logged[self.logged :], key=lambda line: line.time)
        self.noted, self.logged = len(notes), len(logged)
        return list(lines)


def to_json(line: Line) -> str:
    """Returns a line as JSON on one line."""
    value = {"time": line.time.isoformat(), "stage": line.stage, "text": line.text}
    return json.dumps(value, ensure_ascii=False)
