"""The dashboard beside the local cluster: a process that `winnow up --ui` starts."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import psutil

from jobs.errors import DeployError
from jobs.storage import files
from raywinnow import paths

PORT = 8270
"""Port of the dashboard, where it is free."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.1
READABLE_BY_OWNER = 0o600
_started: list["subprocess.Popen[bytes]"] = []
"""Processes of this one; Python warns of those that are forgotten while they run."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A dashboard that runs in a process of its own."""

    pid: int
    created: float
    """Start time of the process, which distinguishes it from a later one with the same pid."""
    storage: str
    url: str
    """Without the token."""
    token: str | None
    """None if the tokens of a file are accepted."""
    tokens: str | None
    """Path of that file."""

    @property
    def link(self) -> str:
        """The URL with the token, which opens the dashboard without a question."""
        return f"{self.url}/#token={self.token}" if self.token else f"{self.url}/"


def record(path: Path, storage: str, url: str, token: str | None, tokens: Path | None) -> None:
    """Writes what this process serves, for its owner alone to read."""
    process = psutil.Process()
    kept = str(tokens.resolve()) if tokens else None
    standing = Standing(process.pid, process.create_time(), storage, url, token, kept)
    text = json.dumps(asdict(standing)).encode()
    files.write_atomically(path, text, mode=READABLE_BY_OWNER)


def running() -> Standing | None:
    """Returns the dashboard beside the local cluster; None if none is up."""
    try:
        found = Standing(**json.loads(_file("ui.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if _process(found) else None


def start(storage: str, tokens: Path | None = None) -> Standing:
    """Starts the dashboard of a storage on 127.0.0.1, unless it is up.

    Args:
        storage: URL of the storage.
        tokens: File of accepted tokens; None for a token that is made for it.

    Raises:
        DeployError: if another dashboard is up, or the start fails.
    """
    with _exclusive():
        found = running()
        kept = str(tokens.resolve()) if tokens else None
        if found and (found.storage, found.tokens) == (storage, kept):
            return found
        if found:
            raise DeployError(
                f"the dashboard of {found.storage} is up at {found.url}; end it with `winnow down`,"
                " or show another storage with `winnow ui --port 0`"
            )
        return _start(storage, tokens)


def stop() -> bool:
    """Ends the dashboard; returns False if none was up."""
    with _exclusive():
        found = running()
        process = _process(found) if found else None
        if process is None:
            return False
        family = [process, *process.children(recursive=True)]
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
        _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        for each in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        _started[:] = [each for each in _started if each.poll() is None]
        _file("ui.json").unlink(missing_ok=True)
        return True


def _start(storage: str, tokens: Path | None) -> Standing:
    _file("ui.json").unlink(missing_ok=True)
    log = _file("ui.log")
    words = ["ui", "--storage", storage, "--port", str(_port()), "--record", str(_file("ui.json"))]
    words += ["--tokens", str(tokens.resolve())] if tokens else []
    # of this machine's cluster, whatever this shell joins
    variables = {k: v for k, v in paths.environment().items() if k != "RAY_ADDRESS"}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, READABLE_BY_OWNER)
    with os.fdopen(descriptor, "wb") as output:  # it has the token
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "raywinnow", *words],
            cwd=files.home(),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started.append(process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := running():
            return found
        time.sleep(POLL_S)
    process.terminate()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("error: ") if lines else "it said nothing"
    raise DeployError(f"the dashboard did not start: {last}; see {log}")


def _process(standing: Standing) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(standing.pid)
        is_ours = abs(process.create_time() - standing.created) < 1
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return process if is_ours and is_alive else None
    return None


def _port() -> int:
    """Returns PORT, or 0 for any if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    """Hold the lock under which processes start or end the dashboard."""
    files.home().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(_file("ui.lock")):
        yield


def _file(name: str) -> Path:
    return files.home() / name
