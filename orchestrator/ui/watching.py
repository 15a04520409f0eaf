"""What a cluster does now, for every browser that shows it: one process observes it for all."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import starlette.concurrency
from pydantic import TypeAdapter, ValidationError

from cluster import local
from orchestrator.decisions.observed import Cluster, Observation
from orchestrator.ui.live import ALIVE_S, LOOK_S, event
from orchestrator.ui.operations import Place
from raywinnow import paths

IDLE_S = 30.0
"""How long the cluster is observed after the last browser has looked."""
SILENT_S = 90.0
"""How long the observing process may say nothing, also while it starts."""
AGAIN_S = 10.0
"""How long after its end another one is started."""
OBSERVED = TypeAdapter(Observation)
Start = Callable[[Place], "subprocess.Popen[str]"]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as it was a moment ago."""

    number: int
    """Grows with every change."""
    is_up: bool
    """Whether there is a cluster to observe."""
    found: Cluster | None
    """None before the first answer."""
    error: str


def start(place: Place) -> "subprocess.Popen[str]":
    """Starts the process that observes the cluster of a place."""
    address = ("--address", place.address) if place.address else ()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "orchestrator.ui.observing", *address],
        cwd=place.folder,
        env=paths.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def has_cluster(place: Place) -> bool:
    """Returns whether there is a cluster to observe."""
    return bool(place.address or os.environ.get("RAY_ADDRESS") or local.running())


class Watch:
    """Observes a cluster while somebody looks; safe for several threads."""

    def __init__(
        self,
        place: Place,
        start: Start = start,
        has_cluster: Callable[[Place], bool] = has_cluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._start, self._has_cluster, self._clock = place, start, has_cluster, clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._view = View(0, is_up=True, found=None, error="")
        self._looked_at = self._heard_at = self._ended_at = float("-inf")
        self._checked_at = float("-inf")

    def look(self) -> View:
        """Returns the newest view, and has the cluster observed for the next IDLE_S seconds."""
        with self._lock:
            now = self._clock()
            self._looked_at = now
            if self._process is None and now - self._checked_at >= LOOK_S:
                self._checked_at = now
                self._begin(now)
            elif self._process and now - self._heard_at > SILENT_S:
                self._set(error=f"the cluster did not answer within {SILENT_S:.0f} s")
                self._process.kill()
            return self._view

    def close(self) -> None:
        """Ends the process that observes."""
        with self._lock:
            if self._process:
                self._process.kill()

    def _begin(self, now: float) -> None:
        if not self._has_cluster(self._place):
            self._set(is_up=False)
        elif now - self._ended_at >= AGAIN_S:
            process = self._start(self._place)
            self._process, self._heard_at = process, now
            if not self._view.is_up:
                self._set()
            threading.Thread(target=self._hear, args=(process,), daemon=True).start()

    def _set(self, *, is_up: bool = True, found: Cluster | None = None, error: str = "") -> None:
        made = View(self._view.number + 1, is_up, found, error)
        if replace(made, number=self._view.number) != self._view:
            self._view = made

    def _hear(self, process: "subprocess.Popen[str]") -> None:
        """Takes over what the process prints, until it ends or nobody looks."""
        with process:
            assert process.stdout
            for line in process.stdout:
                said = _parse(line)
                with self._lock:
                    self._heard_at = self._clock()
                    self._set(found=said.found, error=said.error)
                    if said.error or self._is_idle():
                        process.kill()
        with self._lock:
            self._process, self._ended_at = None, self._clock()
            if self._is_idle():
                self._set()  # what is shown next time must not be old
                self._ended_at = float("-inf")
            elif not self._view.error:
                self._set(error="the connection to the cluster is lost; trying again")

    def _is_idle(self) -> bool:
        return self._clock() - self._looked_at > IDLE_S


def _parse(line: str) -> Observation:
    try:
        return OBSERVED.validate_json(line)
    except ValidationError:
        return Observation(error="the cluster's answer is not valid")


async def events(watch: Watch) -> AsyncIterator[bytes]:
    """Yields a server-sent event `cluster` with each new view, without an end."""
    told, quiet_s = -1, 0.0
    while True:
        view = await starlette.concurrency.run_in_threadpool(watch.look)
        quiet_s = quiet_s + LOOK_S if view.number == told else 0.0
        if view.number != told:
            told = view.number
            yield event("cluster", view)
        elif quiet_s >= ALIVE_S:
            quiet_s = 0.0
            yield b": nothing is new\n\n"
        await asyncio.sleep(LOOK_S)
