"""How probes beside the trials end: done, failed, or interrupted. Ray's part is stood in for."""

import _thread
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.spec import JobSpec
from jobs.storage.storage import open_storage
from orchestrator.context import Context
from orchestrator.decisions.leases import Taken, Unqueued
from orchestrator.decisions.measurement import Launch
from orchestrator.notices import Notice, Progress, Remark
from orchestrator.records.runs import Run
from orchestrator.speeds import Speeds
from tests.builders import any_of, inventory, job, measurement, plan_of, sweep


class Group:
    """The workers, and whether a stage has ended them."""

    def __init__(self, *_: object) -> None:
        self.is_abandoned = threading.Event()
        self.is_closed = False

    def abandon(self) -> None:
        self.is_abandoned.set()

    def close(self) -> None:
        self.is_closed = True

    def launches(self) -> list[Launch]:
        return [Launch("L40S:1", 3.0)]


class Leased(Unqueued):
    """A second lease of the run, which notes that the probes have ended it."""

    def __init__(self, *, has_room: bool = True) -> None:
        self.has_left, self._has_room = False, has_room

    def has_room(self, placement: Placement) -> bool:
        return self._has_room

    def beside(self) -> "Leased":
        return self

    def leave(self) -> None:
        self.has_left = True


class Beside:
    """A run whose trials have begun, and what is probed beside them."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        measure: Callable[["Beside", Any], None],
        *,
        has_room: bool = True,
    ) -> None:
        lr = {"train.optimizer.lr": [1e-5, 1e-4]}
        spec = job(
            train__precision="fp16",
            train__micro_batch_size=16,
            resources__any_of=any_of("L40S:1"),
            sweep=sweep(lr, trials=2),
        )
        self.group, self.told, storage = Group(), list[Notice](), open_storage(folder)
        self.devices = Leased(has_room=has_room)
        monkeypatch.setattr("orchestrator.probing_beside.Workers", lambda *_: self.group)

        def stand_in(_: JobSpec, __: Any, ___: Path, callbacks: Any, **____: Any) -> None:
            measure(self, callbacks)

        monkeypatch.setattr("orchestrator.stages.speed.measure", stand_in)
        run = Run("r", storage)
        self.context = Context(spec, run, storage, self.told.append, 0, devices=self.devices)
        self.plan = plan_of(spec, inventory(L40S=1))
        self.speeds = Speeds(self.context, self.plan)

    def run(self) -> None:
        """Probe it beside trials that take no time."""
        from orchestrator.probing_beside import probing_beside  # imports ray

        with probing_beside(self.context, self.speeds, self.plan.placements):
            pass


def probe(beside: Beside, callbacks: Any) -> None:
    """Probe the candidate, if it gets its device."""
    taken = callbacks.first_free(beside.plan.placements)
    if isinstance(taken, Taken):
        callbacks.on_measurement(measurement(beside.plan.candidates[0].id))


def fail(_: Beside, __: Any) -> None:
    """Fail as where no probe has a result."""
    raise TrainingError("the devices stayed busy")


def interrupt(beside: Beside, _: Any) -> None:
    """Be interrupted by Ctrl-C after the trials; go on until the workers are ended."""
    _thread.interrupt_main()
    assert beside.group.is_abandoned.wait(60)
    raise TrainingError("the run has ended its workers")


def test_what_is_probed_counts_and_its_devices_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch, probe)
    beside.run()
    assert not beside.speeds.unmeasured
    assert [launch.placement for launch in beside.speeds.launches] == ["L40S:1"]
    assert isinstance(beside.told[-1], Progress)
    assert beside.group.is_closed
    assert beside.devices.has_left


def test_devices_that_other_runs_wait_for_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch, probe, has_room=False)
    beside.run()
    assert beside.speeds.unmeasured == beside.plan.candidates
    assert beside.devices.has_left


def test_a_probe_that_fails_beside_trials_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch, fail)
    beside.run()
    text = "L40S:1 could not be probed while trials run: the devices stayed busy"
    assert beside.told[-1] == Remark(text)
    assert beside.speeds.unmeasured == beside.plan.candidates
    assert beside.devices.has_left


def test_an_interruption_after_the_trials_ends_the_probes_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        beside.run()
    assert beside.group.is_closed
    assert beside.devices.has_left
    assert beside.told == [Remark("L40S:1: probed while trials run")]
