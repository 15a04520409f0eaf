"""Training goes on with fewer workers while a device is missing, and with all when it is back."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.placement import Placement, options, place
from cluster.session import Connection
from jobs.spec.quantities import AcceleratorRequest, Cadence
from jobs.spec.train import CheckpointSpec, EvalSpec
from jobs.training.checkpoint import CheckpointStore
from jobs.training.events import Event, Saved, Started, Stepped
from jobs.training.loop import train
from orchestrator.decisions.leases import Ticket
from orchestrator.decisions.recovery import Cause, Failed, Retry
from orchestrator.decisions.resolve import fewer_workers, with_less_time
from tests.builders import hold_device, inventory, training_config, training_workers

STEPS, HIT, WITH_FEWER = 2000, 120, 120
"""Of a run: all, when it loses a worker, and how many are done with fewer."""


@pytest.mark.ray
@pytest.mark.slow
def test_a_lost_device_is_done_without_until_it_is_back(
    ray_cluster: Connection,
    reviews: Path,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches losses that differ from those of one plain process after a group shrank or grew."""
    import ray

    from cluster.discovery import discover
    from orchestrator.stages import elastic, fit
    from orchestrator.stages.queue_actor import LeasedDevices

    monkeypatch.setattr(elastic, "REGAIN_S", 1.0)
    monkeypatch.setattr(elastic, "GROW_S", 1.0)
    fields: dict[str, Any] = {
        "epochs": STEPS / 5,
        "eval": EvalSpec(every=Cadence(500, "step")),
        "checkpoint": CheckpointSpec(every=Cadence(50, "step")),
        "micro_batch_size": 16,
    }
    reference, events = list[Event](), list[Event]()
    said, held, failures = list[str](), list[Any](), list[Failed]()
    train(training_config(reviews, tiny_model, **fields), reference.append)
    placement = place(AcceleratorRequest("L40S", 2), discover(), {})

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped) and event.step >= HIT and not failures:
            for worker in training_workers()[-1:]:
                worker.kill()
        has_gone_on = isinstance(event, Stepped) and event.step >= HIT + WITH_FEWER
        if said == ["continuing with 1 of 2 workers"] and has_gone_on:
            ray.kill(held[0])

    def fail(failed: Failed, _: object) -> None:  # somebody else takes one of the devices
        failures.append(failed)
        held.append(hold_device(placement))

    result = fit.fit(
        training_config(reviews, tiny_model, **fields),
        placement,
        CheckpointStore(tmp_path / "fit" / "checkpoints"),
        fit.Rules(min_workers=1, devices=LeasedDevices(Ticket("r", "job", "ann", 0, 0.0))),
        take,
        fail,
        said.append,
    )
    assert [failed.cause for failed in failures] == [Cause.LOST_WORKER]
    assert said == ["continuing with 1 of 2 workers", "continuing with 2 of 2 workers"]
    first, fewer, again = (event.first_step for event in events if isinstance(event, Started))
    assert fewer in saved_of(events)
    assert first == 0 < fewer < max(fewer + 1, HIT + WITH_FEWER) <= again < STEPS
    assert result.steps == result.checkpoint.step == STEPS
    assert dict(result.losses) == pytest.approx(losses_of(reference), abs=1e-4)


def saved_of(events: list[Event]) -> list[int]:
    """Steps from which the second attempt may go on: the newest checkpoint told, or later ones."""
    second = [n for n, event in enumerate(events) if isinstance(event, Started)][1]
    told = [event.step for event in events[:second] if isinstance(event, Saved)]
    return [step for step in range(0, STEPS, 50) if step >= max(told, default=0)]


def losses_of(events: list[Event]) -> dict[int, float]:
    """By step."""
    return {event.step: event.loss for event in events if isinstance(event, Stepped)}


@pytest.mark.ray
def test_a_fit_that_is_tried_again_ends_when_it_would_have_ended(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """The second attempt has what the first one, the pause and the waits left of the time."""
    from cluster.discovery import discover
    from orchestrator.stages import fit

    limit_s, killed_s = 14.0, 2.0  # a busy machine may tell of steps seconds later
    config = training_config(
        reviews,
        tiny_model,
        epochs=100_000.0,
        eval=EvalSpec(every=Cadence(10**6, "step")),
        checkpoint=CheckpointSpec(every=Cadence(10**6, "step")),
        stop_after_s=limit_s,
    )
    attempts, failures, killed = list[list[float]](), list[Failed](), list[Any]()

    def take(event: Event) -> None:
        if isinstance(event, Started):
            attempts.append([])
        if isinstance(event, Stepped):
            attempts[-1].append(event.seconds)
            if sum(attempts[0]) > killed_s and not killed:  # its last steps are still to come
                killed.extend(training_workers()[-1:])
                killed[0].kill()

    result = fit.fit(
        config,
        place(AcceleratorRequest("cpu", 1), discover(), {}),
        CheckpointStore(tmp_path / "fit" / "checkpoints"),
        fit.Rules(),
        take,
        lambda failed, _: failures.append(failed),
        lambda _: None,
    )
    assert [failed.cause for failed in failures] == [Cause.LOST_WORKER]
    first_s, second_s = (sum(seconds) for seconds in attempts)
    assert first_s > killed_s
    assert second_s < limit_s - killed_s
    assert result.stopped_at is not None


def test_time_that_is_spent_is_taken_from_what_a_fit_may_take(tmp_path: Path) -> None:
    config = training_config(tmp_path, "m", stop_after_s=60.0)
    assert with_less_time(config, 45.0).stop_after_s == 15.0
    assert with_less_time(config, 90.0).stop_after_s == 0.0
    unlimited = training_config(tmp_path, "m")
    assert with_less_time(unlimited, 90.0) == unlimited


@pytest.mark.parametrize(
    ("batch", "micro", "workers", "least", "expected"),
    [
        (32, 4, 8, 1, [4, 2, 1]),
        (32, 4, 8, 3, [4]),
        (32, 4, 8, 8, []),
        (32, 4, 8, None, []),
        (24, 2, 4, 1, [3, 2, 1]),
        (24, 6, 4, 1, [2, 1]),
    ],
)
def test_fewer_workers_share_the_same_global_batch(
    tmp_path: Path, batch: int, micro: int, workers: int, least: int | None, expected: list[int]
) -> None:
    config = training_config(tmp_path, "m", global_batch_size=batch, micro_batch_size=micro)
    assert fewer_workers(config, workers, least) == expected


def test_nodes_to_avoid_are_taken_only_where_nothing_else_is_left() -> None:
    nodes = inventory(T4=2, L40S=1).nodes
    wanted = Placement("T4", 4, ("gone",), 16.0, 2.0)
    (found,) = options(wanted, (3, 2), nodes, frozenset())
    assert (found.workers, found.node_ids, found.price_usd_per_hour) == (2, ("node-T4",), 1.0)
    assert options(wanted, (3,), nodes, frozenset()) == []
    pair = Placement("T4", 2, ("gone",), 16.0, 2.0)
    assert [p.workers for p in options(pair, (1,), nodes, frozenset())] == [2, 1]
    (back,) = options(pair, (1,), nodes, frozenset({"node-T4"}))
    assert (back.workers, back.node_ids) == (2, ("node-T4",))


class FullWorkers:
    """Workers that a run has kept, whose memory is full."""

    line = property(lambda self: self)
    leave = property(lambda _: threading.Event())

    def __init__(self) -> None:
        self.are_up = True

    def run(self, *_: object, **__: object) -> None:
        from orchestrator.stages.failures import GroupError

        raise GroupError(Failed(Cause.OUT_OF_MEMORY, "memory is full"))

    def serves(self, _: Placement) -> bool:
        return self.are_up

    def close(self) -> None:
        self.are_up = False


def test_memory_that_runs_out_in_kept_workers_does_not_change_the_batch(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier work left behind may be why; in new workers it counts."""
    from orchestrator.stages import fit

    placement = place(AcceleratorRequest("L40S", 1), inventory(L40S=1), {})
    config = training_config(reviews, tiny_model, micro_batch_size=16)
    sizes, decisions = list[int](), list[object]()

    def in_new_workers(start: Any, _: object) -> Iterator[Event]:
        sizes.append(start.payload.config.micro_batch_size)
        if len(sizes) == 1:
            FullWorkers().run()
        events: list[Event] = []
        train(start.payload.config, events.append, start.payload.checkpoints)
        yield from events

    monkeypatch.setattr(fit, "stream", in_new_workers)
    monkeypatch.setattr(fit, "wait_for_devices", lambda wanted, *_, **__: wanted)
    rules = fit.Rules(workers=cast(Any, FullWorkers()))
    checkpoints = CheckpointStore(tmp_path / "fit" / "checkpoints")
    result = fit.fit(
        config,
        placement,
        checkpoints,
        rules,
        lambda _: None,
        lambda _, decision: decisions.append(decision),
        lambda _: None,
    )
    assert (sizes, decisions) == ([16, 8], [Retry(), Retry(smaller=True)])
    assert result.checkpoint.step == result.steps
    assert result.micro_batch_size == 8
