"""Runs Winnow's own commands for the dashboard, each in a process of its own.

So a button does what its command does, and Ray, of which a process can join one cluster, stays out
of the server.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import TypeAdapter

from cluster import local
from jobs.errors import RunError
from orchestrator.decisions.leases import Entry
from orchestrator.records.owner import VARIABLE
from raywinnow import paths
from serve.deploy.served import ServedVersion

Kind = Literal["cancel", "promote", "rollback", "undeploy"]
SHOWN_S = 20.0
"""How long a listing of a cluster, which takes a process that joins Ray, is shown again."""
LIST_TIMEOUT_S = 120.0
KEPT = 100
"""Operations whose end is remembered."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
LISTED: Mapping[str, TypeAdapter[Any]] = MappingProxyType(
    {"endpoints": TypeAdapter(tuple[ServedVersion, ...]), "queue": TypeAdapter(tuple[Entry, ...])}
)
"""What each command that lists something of a cluster prints."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the commands of a dashboard act."""

    storage: str
    folder: Path
    """An empty folder, so that a command takes no file for a job."""
    address: str | None = None
    insecure_local: bool = False

    @property
    def cluster(self) -> tuple[str, ...]:
        """Options of commands that join the cluster."""
        address = ("--address", self.address) if self.address else ()
        return (*address, *(("--insecure-local",) if self.insecure_local else ()))


@dataclass(frozen=True, slots=True)
class Operation:
    """A change that somebody asked for."""

    number: int
    kind: Kind
    target: str
    """Run, model, MODEL@VERSION or endpoint."""
    by: str
    begun: datetime
    state: Literal["running", "done", "failed"] = "running"
    text: str = ""
    """What the command said at its end."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What a command lists of the cluster."""

    is_up: bool
    """Whether there is a cluster to ask."""
    found: tuple[Any, ...]
    error: str
    time: datetime


def command_of(kind: Kind, target: str, place: Place) -> tuple[str, ...]:
    """Returns the words of the command that does an operation."""
    at = ("--storage", place.storage)
    match kind:
        case "cancel":
            return ("cancel", *at, "--json", "--", target)
        case "promote":
            name, _, version = target.partition("@")
            return ("models", "promote", *at, *place.cluster, "--json", "--", name, version)
        case "rollback":
            return ("models", "rollback", *at, *place.cluster, "--json", "--", target)
        case "undeploy":
            return ("undeploy", *place.cluster, "--json", "--", target)


class Operations:
    """The operations of a dashboard, one at a time for each target."""

    def __init__(self, place: Place, on_end: Callable[[], None] = lambda: None) -> None:
        self._place, self._on_end, self._lock = place, on_end, threading.Lock()
        self._numbers = itertools.count(1)
        self._every: dict[int, Operation] = {}
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def begin(self, kind: Kind, target: str, by: str) -> Operation:
        """Begins an operation and returns without waiting for its end.

        Raises:
            RunError: if another operation on the same target goes on.
        """
        with self._lock:
            name = target.partition("@")[0]
            for each in self._every.values():
                if each.state == "running" and each.target.partition("@")[0] == name:
                    raise RunError(f"{each.kind} of {each.target} goes on; wait for its end")
            words = command_of(kind, target, self._place)
            process = _start(words, self._place.folder, {VARIABLE: by})
            made = Operation(next(self._numbers), kind, target, by, datetime.now(UTC))
            self._every[made.number], self._processes[made.number] = made, process
            self._forget_old()
        threading.Thread(target=self._await, args=(made,), daemon=True).start()
        return made

    def recent(self) -> tuple[Operation, ...]:
        """Returns the last operations, the newest first."""
        with self._lock:
            return tuple(reversed(self._every.values()))

    def close(self) -> None:
        """Ends the commands that go on, as Ctrl-C would."""
        with self._lock:
            for process in self._processes.values():
                process.terminate()

    def _forget_old(self) -> None:
        for number in list(self._every)[:-KEPT]:
            if self._every[number].state != "running":
                del self._every[number]

    def _await(self, made: Operation) -> None:
        printed, _ = self._processes[made.number].communicate()
        self._on_end()
        with self._lock:
            code = self._processes.pop(made.number).returncode
            text = _said(printed)
            state: Literal["done", "failed"] = "failed" if code else "done"
            text = text or (f"the command ended with exit code {code}" if code else "done")
            self._every[made.number] = replace(made, state=state, text=text)


class Lister:
    """What one of the commands in LISTED lists, asked for at most once in SHOWN_S seconds."""

    def __init__(
        self, command: str, place: Place, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._place, self._clock = command, place, clock
        self._lock = threading.Lock()
        self._found: Listed | None = None
        self._asked_at = float("-inf")

    def listed(self) -> Listed:
        """Returns what is listed; waits for the answer if the last one is too old."""
        with self._lock:
            now = self._clock()
            if self._found is None or now - self._asked_at >= SHOWN_S:
                self._found = self._ask()
                self._asked_at = self._clock()
            return self._found

    def forget(self) -> None:
        """Ask again next time."""
        self._asked_at = float("-inf")

    def _ask(self) -> Listed:
        now = datetime.now(UTC)
        if not (self._place.address or os.environ.get("RAY_ADDRESS") or local.running()):
            return Listed(is_up=False, found=(), error="", time=now)
        address = ("--address", self._place.address) if self._place.address else ()
        process = _start((self._command, *address, "--json"), self._place.folder)
        try:
            printed, _ = process.communicate(timeout=LIST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            error = f"the cluster did not answer within {LIST_TIMEOUT_S:.0f} s"
            return Listed(is_up=True, found=(), error=error, time=now)
        if process.returncode:
            return Listed(is_up=True, found=(), error=_said(printed), time=now)
        found = LISTED[self._command].validate_json(printed)
        return Listed(is_up=True, found=found, error="", time=now)


def _start(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] = NO_VARIABLES
) -> "subprocess.Popen[str]":
    """Starts a command of Winnow in a folder."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "raywinnow", *words],
        cwd=folder,
        env={**paths.environment(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _said(printed: str) -> str:
    """Returns the error in what a command printed, or the state of a run; else nothing."""
    try:
        value = json.loads(printed)
        return str(value.get("error") or value.get("state") or "")
    except (ValueError, AttributeError):
        return ""
