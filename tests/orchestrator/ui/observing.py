"""A process that observes a cluster that is made up: it prints what a test wants."""

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pydantic_core

from cluster.exporter import GpuUse, NodeUse
from orchestrator.decisions.leases import Entry
from orchestrator.decisions.leases import Place as InQueue
from orchestrator.decisions.observed import Cluster, NodeState, Observation
from orchestrator.ui.operations import Place
from orchestrator.ui.watching import Watch
from serve.deploy.figures import RolloutState, VersionFigures
from serve.deploy.served import ServedVersion

EMPTY = Cluster(datetime(2026, 11, 21, tzinfo=UTC), (), (), (), ())
PLACE = Place("storage", Path())


@dataclass
class Observing:
    """Starts processes that print what a test wants, and end with their input."""

    lines: list[str]
    is_up: bool = True
    now: float = 0.0
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, _: Place) -> "subprocess.Popen[str]":
        """A process that prints its lines, one each time that it reads one."""
        script = "import sys\nfor line in sys.argv[1:]: print(line, flush=True); input()"
        process = subprocess.Popen(
            [sys.executable, "-c", script, *self.lines],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.started.append(process)
        return process

    def go_on(self) -> None:
        """The newest process prints its next line, or ends."""
        stdin = self.started[-1].stdin
        assert stdin
        stdin.write("\n")
        stdin.flush()

    def watch(self) -> Watch:
        """What the dashboard has."""
        return Watch(PLACE, self.start, lambda _: self.is_up, lambda: self.now)


def line(found: Cluster | None = None, error: str = "") -> str:
    """A line of the observing process."""
    return pydantic_core.to_json(Observation(found, error)).decode()


def busy(versions: tuple[str, ...], run: str, owner: str) -> Cluster:
    """A cluster in the middle of a rollout, with a queue and two kinds of nodes."""
    old, new = versions[:2]

    def figures(
        name: str, version: str, percent: int, *values: float | None, replicas: int = 1
    ) -> VersionFigures:
        route, state = (f"/{name}", "RUNNING") if percent else (None, "DEPLOYING")
        served = ServedVersion(name, version, route, percent, state, replicas)
        rate, errors, p50, p95 = values
        return VersionFigures(served, rate, errors, p50, p95, 60.0)

    def node(host: str, devices: str, taken: float, total: float, use: NodeUse | None) -> NodeState:
        kind = "CPU" if devices.endswith("cpu") else "GPU"
        return NodeState(host, host, devices, use is None, kind, taken, total, use)

    gpus = GpuUse(0, 87.0, 20.5, 44.4), GpuUse(1, 3.0, 0.6, 44.4)
    return Cluster(
        datetime(2026, 11, 21, 12, tzinfo=UTC),
        (
            figures("reviews", old, 90, 412.6, 0.0, 3.1, 9.7, replicas=2),
            figures("reviews", new, 10, 45.1, 0.012, 4.0, 88.0),
            figures("topics", old, 0, 0.0, None, None, None, replicas=0),
        ),
        (RolloutState("/reviews", "reviews", old, new, 10),),
        (
            Entry(run, "reviews", owner, 5, "runs", "L40S:2", 1.0),
            Entry(run, "topics", "bob@laptop", 0, "waits", "L40S:1", 2.0, InQueue(1, 1, owner)),
        ),
        (
            node("head", "8 x cpu", 3.0, 16.0, NodeUse(41.2, 12.0, 31.4)),
            node(owner, "2 x L40S", 2.0, 2.0, NodeUse(9.0, 60.1, 125.6, gpus)),
            node("gpu-2", "4 x T4", 0.0, 4.0, None),
        ),
    )
