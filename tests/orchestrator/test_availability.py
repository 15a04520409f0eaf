"""Waiting for devices on the simulated cluster, and going on elsewhere when they stay busy."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.placement import Placement
from cluster.session import Connection
from jobs.errors import ClusterError, JobFileError
from jobs.loader import loads
from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef, Interrupted
from orchestrator.context import Context
from orchestrator.decisions import select
from orchestrator.decisions.leases import Ticket, World
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.notices import Remark
from orchestrator.records import runs
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from tests.builders import any_of, eventually, hold_device, inventory, job, measurement, plan_of

if TYPE_CHECKING:  # ray is imported once the cluster is joined
    from jobs.training.events import Report
    from orchestrator.availability import Availability

pytestmark = pytest.mark.ray

LISTED = any_of("T4:4", "L40S:2")


@contextlib.contextmanager
def held(plan: Plan, name: str) -> Iterator[None]:
    """Another program has one device of a placement."""
    import ray

    from orchestrator.stages import queue_actor

    placement = next(p for p in plan.placements if p.name == name)
    other = hold_device(placement)
    try:
        assert eventually(lambda: used(queue_actor.world(), placement) > 0)  # a moment later
        yield
    finally:
        ray.kill(other)
        assert eventually(lambda: not used(queue_actor.world(), placement))


def used(world: World, placement: Placement) -> float:
    """Devices of a placement's nodes that are used, as the queue sees them."""
    return sum(world.slots[node, "GPU"].used for node in placement.node_ids)


def prepared(
    folder: Path, then: str = "next_best", **resources: object
) -> tuple["Availability", Plan, list[str]]:
    """What watches the devices of a job on T4:4 and L40S:2, the plan, and remarks."""
    from cluster.discovery import discover
    from orchestrator.availability import Availability
    from orchestrator.stages.queue_actor import LeasedDevices

    remarks: list[str] = []
    spec = job(resources={"wait": {"timeout": "1s", "then": then}, **resources})
    plan = make_plan(spec, discover(), None)
    context = Context(
        spec,
        Run("r", open_storage(folder)),
        open_storage(folder),
        lambda notice: remarks.append(notice.text) if isinstance(notice, Remark) else None,
        0,
        devices=LeasedDevices(Ticket("r", spec.name, "ann", 0, 0.0)),
    )
    return Availability(context, plan), plan, remarks


def test_busy_devices_are_left_for_the_next_best(ray_cluster: Connection, tmp_path: Path) -> None:
    available, plan, remarks = prepared(tmp_path, any_of=LISTED)
    busy, free = plan.placements
    assert chosen(available, busy, free) == busy
    with held(plan, "T4:4"):
        assert chosen(available, busy, free) == free
        assert available.busy == set()
        assert chosen(available, busy) is None
    why = "an endpoint or another program holds devices"
    assert remarks == [f"T4:4 stayed busy for 1s ({why}); continuing with L40S:2"]
    assert chosen(available, free) == free


def chosen(available: "Availability", *placements: Placement) -> Placement | None:
    """The first of the placements that is free, whose devices are leased now."""
    taken = available.first_free(placements)
    return taken.option if taken else None


def report_payload(payload: int, report: "Report") -> None:
    """Work of a group."""
    report(Interrupted(payload))


def test_devices_that_another_job_took_since_are_waited_for(
    ray_cluster: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job lets go once the group has not started for the first time."""
    from orchestrator.stages import failures, group

    monkeypatch.setitem(group.SETTINGS, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "2")
    _, plan, _ = prepared(tmp_path, any_of=LISTED)
    placement = plan.placements[1]
    began = time.monotonic()
    start = group.Start(report_payload, 1, placement, "fit", tmp_path)
    with contextlib.ExitStack() as other:
        other.enter_context(held(plan, placement.name))
        with pytest.raises(failures.BusyError, match="did not get their devices in time"):
            list(group.stream(start, group.DeviceWait(0)))
        told: list[str] = []

        def let_go(text: str) -> None:
            told.append(text)
            other.close()

        device_wait = group.DeviceWait(600, let_go)
        events = list(group.stream(start, device_wait))
    assert set(events) == {Interrupted(1)}
    assert told == [
        f"another job or endpoint took the devices of {placement.name}; waiting for them"
    ]
    assert 2 <= device_wait.waited_s <= time.monotonic() - began


def test_a_job_may_fail_instead(ray_cluster: Connection, tmp_path: Path) -> None:
    available, plan, _ = prepared(tmp_path, then="fail", any_of=LISTED)
    with held(plan, "T4:4"), pytest.raises(ClusterError, match="T4:4 stayed busy for 1s"):
        available.first_free(plan.placements[:1])


def test_the_first_in_order_that_is_free_is_taken(ray_cluster: Connection, tmp_path: Path) -> None:
    available, plan, remarks = prepared(tmp_path, ordered=LISTED)
    assert {p.name for p in available.preferred().placements} == {"T4:4"}
    with held(plan, "T4:4"):
        chosen = available.preferred()
    assert {p.name for p in chosen.placements} == {"L40S:2"}
    assert remarks[-1] == "L40S:2 is the first in order with free devices"
    assert all("precedes it" in left.reason for left in chosen.skipped if "T4:4" in left.id)


def test_a_recorded_winner_is_looked_for_on_the_nodes_of_a_new_cluster(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    """As after the death of a head: ids of nodes are those of a cluster that is gone."""
    from orchestrator import sweeping

    available, plan, remarks = prepared(tmp_path, any_of=LISTED)
    winner = select.select_unmeasured(plan)
    placement = replace(winner.candidate.placement, node_ids=("gone",))
    recorded = replace(winner, candidate=replace(winner.candidate, placement=placement))
    context = available._context
    context.run.write("winner", recorded)
    found = sweeping.run_sweep(context, plan)
    assert found.winner == winner
    assert remarks == []


def test_a_winner_whose_devices_stay_busy_gives_way_in_the_job_that_is_kept_too(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    from orchestrator import sweeping

    available, plan, _ = prepared(tmp_path, any_of=LISTED)
    context, winner = available._context, select.select_unmeasured(plan)
    context.run.write("winner", winner)
    with held(plan, winner.candidate.placement.name):
        found = sweeping.run_sweep(context, plan).winner
    assert found.candidate.placement.name != winner.candidate.placement.name
    assert context.run.value("winner", select.Winner) == found
    kept = loads(context.run.kept(runs.WINNER) or b"").resources
    assert kept is not None
    assert [str(p.accelerators) for p in kept.any_of] == [found.candidate.placement.name]


def test_a_measured_placement_that_stays_busy_while_it_is_confirmed_may_still_win(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    """Its first timing counts, and its devices are waited for anew before the fit."""
    from orchestrator.probing import confirm
    from orchestrator.speeds import Speeds

    available, plan, remarks = prepared(tmp_path, then="fail", any_of=LISTED)
    context = available._context
    for candidate in plan.candidates:
        context.run.append("measurements", measurement(candidate.id))
    speeds, winner = Speeds(context, plan), select.select_unmeasured(plan)
    best = plan.candidate(winner.candidate.id)
    with held(plan, best.placement.name):
        again = replace(winner, finalists=(best.id,))
        assert not confirm(context, plan, speeds, again, available)
    why = "an endpoint or another program holds devices"
    told = f"{best.placement.name} stayed busy for 1s ({why}); what was measured before counts"
    assert remarks == [told]
    found = available.available(speeds.predictions)
    assert best.id in {prediction.candidate for prediction in found}
    taken = available.await_free(best)
    assert taken is not None
    assert taken.option == best.placement


def test_a_trained_run_goes_on_without_its_base_and_its_nodes(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    """Only publishing and deploying are left."""
    from orchestrator import pipeline, sweeping

    spec = job(
        model__base=str(tmp_path / "gone"),
        resources={"any_of": any_of("RTX4090:2")},
        storage=str(tmp_path),
    )
    plan = plan_of(spec, inventory(RTX4090=2))
    storage = open_storage(tmp_path)
    context = Context(spec, Run("r", storage), storage, lambda _: None, 0)
    context.run.write("plan", plan)
    context.run.write("winner", select.select_unmeasured(plan))
    with pytest.raises(JobFileError, match="gone"):
        pipeline.plan_stage(context)
    trained = FitResult(CheckpointRef("/x", 1, {}), ("a", "b"), 1, 1.0, 0, (), ())
    context.run.write("fit", trained)
    assert pipeline.plan_stage(context) == plan
    assert sweeping.run_sweep(context, plan).winner == select.select_unmeasured(plan)
    written = [note["stage"] for note in context.run.notes]
    assert written == ["plan", "winner", "fit"]  # and no plan without these nodes
