"""Runs of several drivers take devices of the simulated cluster by turns."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from cluster.placement import Placement, place
from cluster.session import Connection
from jobs.spec.quantities import AcceleratorRequest
from orchestrator.decisions.leases import Devices, Place, Taken, Ticket
from tests.builders import eventually
from tests.commands import printed

pytestmark = pytest.mark.ray

OTHER_DRIVER = """
import sys, time
from cluster import session

with session.connect(start=False):
    from cluster.discovery import discover
    from cluster.placement import place
    from jobs.spec.quantities import AcceleratorRequest
    from orchestrator.decisions.leases import Taken, Ticket
    from orchestrator.stages.queue_actor import LeasedDevices

    devices = LeasedDevices(Ticket("run-b", "job-b", "bob", 0, 2e9))
    wanted = place(AcceleratorRequest("T4", 3), discover(), {})
    last = None
    while True:
        found = devices.take([wanted])
        said = "taken" if isinstance(found, Taken) else str(found)
        if said != last:
            print(said, flush=True)
            last = said
        time.sleep(0.1)
"""
"""Asks for three of four devices again and again, and prints what it hears."""


def test_drivers_take_turns_and_a_killed_one_leaves_its_devices(ray_cluster: Connection) -> None:
    from cluster.discovery import discover
    from orchestrator.stages import queue_actor

    wanted = place(AcceleratorRequest("T4", 2), discover(), {})
    mine = queue_actor.LeasedDevices(Ticket("run-a", "job-a", "ann", 0, 1e9))
    taken = mine.take([wanted])
    assert isinstance(taken, Taken)
    assert (taken.option, taken.devices, len(taken.placement.worker_nodes)) == (wanted, 2, 2)
    assert set(taken.placement.worker_nodes) == set(taken.placement.node_ids)
    with other_driver() as said:
        assert next(said) == "place 1 of 1 in the queue: job-a of ann holds T4:2\n"
        shown = {each.run: each.state for each in queue_actor.entries()}
        assert (shown["run-a"], shown["run-b"]) == ("runs", "waits")
        mine.give_back()
        assert next(said) == "taken\n"
        waiting = mine.take([wanted])
        assert isinstance(waiting, Place)
        assert waiting.why == "job-b of bob holds T4:3"
    began = time.monotonic()
    assert eventually(taken_by(mine, wanted), within_s=60)
    assert time.monotonic() - began < 60
    many = mine.take([wanted], groups=9)
    assert isinstance(many, Taken)
    assert many.devices == 4
    mine.leave()
    assert "run-a" not in {each.run for each in queue_actor.entries()}


@contextlib.contextmanager
def other_driver() -> Iterator[Iterator[str]]:
    """What another driver says, which is killed at the end."""
    command = [sys.executable, "-c", OTHER_DRIVER]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout
        yield iter(other.stdout)
    finally:
        other.kill()
        other.wait()


def taken_by(devices: Devices, wanted: Placement) -> Callable[[], bool]:
    """Whether the devices are leased on this call."""
    return lambda: isinstance(devices.take([wanted]), Taken)


def test_the_queue_is_shown(ray_cluster: Connection) -> None:
    from orchestrator.stages import queue_actor

    mine = queue_actor.LeasedDevices(Ticket("run-a", "job-a", "ann", 7, time.time()))
    try:
        command = [sys.executable, "-m", "orchestrator", "queue"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (line,) = (line for line in shown.splitlines() if line.startswith("run-a"))
        assert line.split() == ["run-a", "ann", "7", "plans", "–", "0", "min", "–"]
        found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        (entry,) = (each for each in printed("queue", found.stdout) if each["run"] == "run-a")
        assert (entry["owner"], entry["priority"], entry["state"]) == ("ann", 7, "plans")
        command[-1] = "status"
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (devices,) = (line for line in shown.splitlines() if line.startswith("devices "))
        assert "4 x T4" in devices
        assert "run-a of ann: plans" in shown.splitlines()
    finally:
        mine.leave()
