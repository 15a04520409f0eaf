"""Runs Winnow's own commands for the dashboard, each in a process of its own.

So a button does what its command does, and Ray, of which a process can join one cluster, stays out
of the server.
"""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from jobs.errors import RunError
from orchestrator.records.owner import VARIABLE
from raywinnow import paths

Kind = Literal["cancel", "promote", "rollback", "undeploy"]
KEPT = 100
"""Operations whose end is remembered."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


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

    def __init__(self, place: Place) -> None:
        self._place, self._lock = place, threading.Lock()
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
        with self._lock:
            code = self._processes.pop(made.number).returncode
            text = _said(printed)
            state: Literal["done", "failed"] = "failed" if code else "done"
            text = text or (f"the command ended with exit code {code}" if code else "done")
            self._every[made.number] = replace(made, state=state, text=text)


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
        errors="replace",
    )


def _said(printed: str) -> str:
    """Returns the error in what a command printed, or the state of a run; else nothing."""
    try:
        value = json.loads(printed)
        return str(value.get("error") or value.get("state") or "")
    except (ValueError, AttributeError):
        return ""
