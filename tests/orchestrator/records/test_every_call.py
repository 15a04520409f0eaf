"""Publishing, a line and a move, cut or refused at every system call: the old state or the new."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.storage.storage import open_storage
from orchestrator.records import aliases, journal, registry
from tests.builders import job
from tests.orchestrator.records import acting

STRACE = shutil.which("strace")
CALLS = "%file,%desc"
"""What names a file or uses an open one: nothing else changes a disk."""
REFUSABLE = ("openat", "write", "fsync", "rename", "mkdir", "copy_file_range", "sendfile", "flock")
"""What a full or broken disk refuses, of what the operations use."""

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed")


class Actor:
    """Performs operations in children that strace holds."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", acting.__name__, str(folder / "warm")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.log = folder / "strace.log"

    def act(self, name: str, folder: Path, *inject: str) -> int:
        """Status of a child that did one operation, or did not."""
        assert STRACE
        assert self.process.stdin
        self.process.stdin.write(f"{name} {folder}\n")
        self.process.stdin.flush()
        child = int(self.line())
        options = ["-q", "-o", str(self.log), "-e", f"trace={CALLS}", *inject, "-p", str(child)]
        tracer = subprocess.Popen([STRACE, *options], stderr=subprocess.DEVNULL)
        while not traced(child):
            assert tracer.poll() is None
        os.kill(child, signal.SIGCONT)
        status = int(self.line())
        tracer.wait()
        return status

    def calls(self) -> Counter[str]:
        """How often the last child made each call."""
        found = re.findall(r"^(?:\d+ +)?(\w+)\(", self.log.read_text(), flags=re.MULTILINE)
        return Counter(found)

    def line(self) -> str:
        """The next answer."""
        assert self.process.stdout
        found = self.process.stdout.readline()
        assert found
        return found


def traced(process: int) -> bool:
    """Whether a tracer has attached."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return "TracerPid:\t0\n" not in status


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Actor]:
    """One process for all operations."""
    made = Actor(tmp_path_factory.mktemp("actor"))
    yield made
    made.process.kill()
    made.process.communicate()


def prepare(folder: Path) -> Path:
    """A storage with an old version, line and alias, and a checkpoint to publish."""
    storage = open_storage(folder / "storage")
    old = acting.checkpoint(folder / "old", "old")
    registry.publish(job(name="m"), old, ("a", "b"), run_id="old", storage=storage)
    journal.append(storage.objects, "runs/r/journal.jsonl", b'"old"')
    aliases.move(storage.objects, "m", "deployed", lambda _: "old")
    acting.checkpoint(folder / "new", "new")
    return folder


def state(name: str, folder: Path) -> bool:
    """Whether the new state is there; anything but the old or the new one fails."""
    storage = open_storage(folder / "storage")
    if name == "append":
        lines = journal.read(storage.objects, "runs/r/journal.jsonl")
        assert lines.values in ((b'"old"',), (b'"old"', b'"new"'))
        assert not lines.damaged
        return len(lines.values) == 2
    if name == "move":
        moves = [m.version for m in aliases.history(storage.objects, "m", "deployed")]
        assert moves in (["old"], ["old", "new"])
        return len(moves) == 2
    runs = {"old": "old" * 1000, "new": "new" * 1000}
    newest = registry.read(storage, "m")  # verified
    text = (Path(newest.path) / "model.safetensors").read_text(encoding="utf-8")
    assert text in runs.values()
    for version, _ in registry.every(storage):
        registry.read(storage, "m", version.id)
    return text == runs["new"]


@pytest.mark.parametrize(
    "name", ["append", "move", pytest.param("publish", marks=pytest.mark.slow)]
)
def test_cut_or_refused_at_every_call_it_is_the_old_state_or_the_new(
    name: str, actor: Actor, tmp_path: Path
) -> None:
    """A kill, a full and a broken disk at each call that names or uses a file.

    The slow one catches what test_full_disk.py cannot: publishing makes over a hundred calls.
    """
    whole = prepare(tmp_path / "whole")
    assert actor.act(name, whole) == 0
    assert state(name, whole)
    calls = actor.calls()
    points = [("signal=KILL", call, k) for call, n in calls.items() for k in range(1, n + 1)]
    for error in ("ENOSPC", "EIO"):
        refused = {call: n for call, n in calls.items() if call.startswith(REFUSABLE)}
        points += [(f"error={error}", c, k) for c, n in refused.items() for k in range(1, n + 1)]
    template = prepare(tmp_path / "template")
    ends = Counter[str]()
    for fault, call, number in points:
        folder = tmp_path / "now"
        shutil.copytree(template, folder)
        status = actor.act(name, folder, "-e", f"inject={call}:{fault}:when={number}")
        is_new = state(name, folder)
        code = os.waitstatus_to_exitcode(status)
        where = f"{fault} at {call} {number}: {code}"
        assert code in (acting.DONE, acting.REFUSED, -signal.SIGKILL), where
        assert is_new or code != acting.DONE, where
        ends[f"{fault} {'new' if is_new else 'old'}"] += 1
        if not is_new or name != "append":  # once more, without trouble
            acting.OPERATIONS[name](folder)
        assert state(name, folder), where
        shutil.rmtree(folder)
    print(name, len(points), dict(ends))  # noqa: T201 - how many points there were
    assert ends["signal=KILL old"]
    assert ends["signal=KILL new"]
    assert ends["error=ENOSPC old"]
