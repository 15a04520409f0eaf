"""Many runs of several owners at once on a small simulated cluster, some of them killed.

    python benchmarks/queue_runs.py [--runs 20] [--owners 4] [--sweeps 4] [--kills 3]
        [--seed 1] [--out FILE]

The cluster has one T4, one L40S and one A100. All runs begin within a minute; each trains a tiny
model on one of the accelerators that it draws, some of them after a sweep. Now and then a driver
that holds devices gets SIGKILL, and its run is resumed. Every second the queue is read. Written:
how each run ended, in which order runs came and began, how long each owner waited, and the longest
time for which a device was idle while a run that could use it waited.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402 - the script runs from a clone, installed or not

from benchmarks import faults  # noqa: E402
from cluster import local, session  # noqa: E402
from jobs.spec.quantities import AcceleratorRequest  # noqa: E402
from orchestrator.decisions.leases import Entry  # noqa: E402

KINDS = ("T4", "L40S", "A100-80GB")
KILL_EVERY_S = 90.0
LIMIT_S = 3_600
IDLE_LIMIT_S = 10.0


@dataclass
class Job:
    """A run that is started, and started again when it was killed."""

    path: Path
    owner: str
    starts_s: float
    process: "subprocess.Popen[bytes] | None" = None
    codes: list[int] = field(default_factory=list)

    def start(self, *options: str) -> None:
        """Start the command, whose output goes beside the job file."""
        words = [sys.executable, "-m", "orchestrator", "run", str(self.path), *options]
        environment = {**os.environ, "WINNOW_USER": self.owner, "PYTHONPATH": str(ROOT)}
        with self.path.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def go_on(self, passed_s: float) -> None:
        """Start it when its time has come, and again after it was killed."""
        if self.process is None and not self.codes and passed_s >= self.starts_s:
            self.start()
        if self.process is None or self.process.poll() is None:
            return
        self.codes.append(self.process.returncode)
        self.process = None
        if self.codes[-1] == -signal.SIGKILL:
            self.start("--resume", "--or-new")

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return bool(self.codes) and self.process is None


def main() -> int:
    """Start all, watch, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--owners", type=int, default=4)
    parser.add_argument("--sweeps", type=int, default=4, help="runs that probe and try first")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winnow-queue-") as name:
        os.environ["WINNOW_HOME"] = f"{name}/home"
        jobs = made_up(Path(name), arguments)
        local.start([AcceleratorRequest(kind, 1) for kind in KINDS])
        try:
            with session.connect(start=False):
                result = watched(jobs, arguments)
        finally:
            local.stop()
    text = json.dumps({**vars(arguments), "out": None, **result}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    is_right = result["ended"] == {"0": arguments.runs} and not result["never_began"]
    return 0 if is_right and result["longest_idle_s"] <= IDLE_LIMIT_S else 1


def made_up(folder: Path, arguments: argparse.Namespace) -> list[Job]:
    """Jobs that begin within a minute, each for one or two kinds of accelerators."""
    draw = random.Random(arguments.seed)
    faults.rows(folder)
    faults.model(folder / "model")
    jobs = []
    for number in range(arguments.runs):
        path = faults.job(folder, f"job-{number}")
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        kinds = draw.sample(KINDS, draw.choice((1, 1, 2)))
        values["name"] = f"job-{number}"
        values["resources"] = {
            "any_of": [{"accelerators": f"{kind}:1"} for kind in kinds],
            "wait": {"timeout": f"{LIMIT_S}s"},
        }
        del values["serve"]
        if number >= arguments.sweeps:
            del values["sweep"]
        own = folder / f"job-{number}.yaml"
        own.write_text(yaml.safe_dump(values), encoding="utf-8")
        jobs.append(Job(own, f"owner-{number % arguments.owners}", draw.uniform(0, 60)))
    return sorted(jobs, key=lambda job: job.starts_s)


def watched(jobs: list[Job], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all jobs to their end; returns what was seen of the queue meanwhile."""
    draw, began, seen = random.Random(arguments.seed), time.monotonic(), Seen()
    kills_s = [KILL_EVERY_S * number for number in range(1, arguments.kills + 1)]
    passed_s, killed = 0.0, 0
    while not all(job.has_ended for job in jobs) and passed_s < LIMIT_S:
        passed_s = time.monotonic() - began
        for job in jobs:
            job.go_on(passed_s)
        entries = queue()
        seen.take(entries, passed_s)
        if kills_s and passed_s > kills_s[0] and kill_one(jobs, entries, draw):
            del kills_s[0]
            killed += 1
        time.sleep(1.0)
    for job in jobs:
        if job.process is not None:
            job.process.kill()
    ended = Counter(str(job.codes[-1] if job.codes else None) for job in jobs)
    came = [job.path.stem for job in jobs]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(passed_s, 1),
        "killed": killed,
        "ended": dict(ended),
        "came": came,
        "began": seen.began,
        "never_began": sorted(set(came) - set(seen.began)),
        "device_s_by_owner": {name: round(s) for name, s in sorted(seen.held_s.items())},
        "longest_wait_s_by_owner": {n: round(s) for n, s in sorted(seen.waited_s.items())},
        "longest_idle_s": round(max(seen.longest_idle_s.values(), default=0.0), 1),
    }


def kill_one(jobs: list[Job], entries: tuple[Entry, ...], draw: random.Random) -> bool:
    """Kill the driver of a run that holds a device; returns False if there is none."""
    holding = {each.job for each in entries if each.state == "runs"}
    drivers = [job.process for job in jobs if job.process and job.path.stem in holding]
    if drivers:
        draw.choice(drivers).kill()
    return bool(drivers)


def queue() -> tuple[Entry, ...]:
    """Returns the runs of the cluster's queue."""
    from orchestrator.stages import queue_actor  # Ray reads its environment when it is imported

    return queue_actor.entries()


class Seen:
    """What the queue showed, second by second."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.held_s: dict[str, float] = defaultdict(float)
        self.waited_s: dict[str, float] = defaultdict(float)
        """Longest wait of a run for its first devices or for further ones."""
        self.longest_idle_s: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        self._before_s = 0.0

    def take(self, entries: tuple[Entry, ...], now_s: float) -> None:
        """Record the queue at one moment."""
        held = {each.devices.split(":")[0] for each in entries if each.state == "runs"}
        wanted: set[str] = set()
        for each in entries:
            if each.state == "runs":
                self.held_s[each.owner] += now_s - self._before_s
                if each.job not in self.began:
                    self.began.append(each.job)
            if each.state == "waits":
                waits_s = time.time() - each.since
                self.waited_s[each.owner] = max(self.waited_s[each.owner], waits_s)
                wanted |= {name.split(":")[0] for name in each.devices.split(", ")}
        for kind in KINDS:
            if kind in wanted and kind not in held:
                since = self._idle_since.setdefault(kind, now_s)
                longest = self.longest_idle_s.get(kind, 0.0)
                self.longest_idle_s[kind] = max(longest, now_s - since)
            else:
                self._idle_since.pop(kind, None)
        self._before_s = now_s


if __name__ == "__main__":
    sys.exit(main())
