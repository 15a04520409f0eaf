"""The Ray stages on a cluster of simulated accelerators."""

import contextlib
import dataclasses
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cluster.placement import Placement, place
from cluster.session import Connection
from jobs.errors import ClusterError, InfeasibleError, RunError, TrainingError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.storage.storage import open_storage
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.events import Event, OutOfMemory, Saved, Stepped
from jobs.training.loop import train
from jobs.training.model.counting import shape_of
from jobs.training.restart import Kept
from orchestrator.context import Context
from orchestrator.decisions import predict, search, select
from orchestrator.decisions.leases import Ticket
from orchestrator.decisions.measurement import Launch, Measurement
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.decisions.recovery import Cause
from orchestrator.decisions.search import TrialResult
from orchestrator.notices import Notice, Notify, Progress, Remark
from orchestrator.records.runs import Run
from tests.builders import (
    any_of,
    eventually,
    job,
    measurement,
    ray_processes,
    sweep,
    training_config,
)

pytestmark = pytest.mark.ray

PROBE = {"warmup": "10ms", "duration": "10ms"}


def sweep_job(reviews: Path, tiny_model: str, *placements: str) -> JobSpec:
    """A job over tiny data and a tiny model."""
    space = {"train.micro_batch_size": [8, 16], "train.optimizer.lr": [1e-3, 3e-3]}
    return job(
        model__base=tiny_model,
        data__train__path=str(reviews / "train.csv"),
        data__eval__path=str(reviews / "eval.csv"),
        data__max_length=16,
        train__precision="fp32",
        train__epochs=2,
        resources__any_of=any_of(*placements),
        sweep=sweep(space, trials=2, trial_share=1.0, probe=PROBE),
    )


def test_inventory_lists_the_simulated_nodes(ray_cluster: Connection) -> None:
    from cluster.discovery import discover

    found = discover()
    assert {sku: n for sku, n in found.counts().items() if sku != "cpu"} == {
        "A100-80GB": 1,
        "L40S": 2,
        "T4": 4,
    }
    assert all(node.simulated for node in found.nodes if node.sku != "cpu")


@pytest.mark.slow
def test_a_sweep_over_two_skus_runs_each_on_its_own_nodes(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Catches work on another SKU than its own in a whole sweep: each worker checks its node."""
    from cluster.discovery import discover
    from orchestrator.stages import hyperparameter_search, speed

    spec = sweep_job(reviews, tiny_model, "A100-80GB:1", "L40S:2")
    plan = make_plan(spec, discover(), shape_of(tiny_model))
    assert [p.name for p in plan.placements] == ["A100-80GB:1", "L40S:2"]
    assert all(placement.simulated for placement in plan.placements)
    measured: list[Measurement] = []
    launches: list[Launch] = []
    findings = speed.ProbeCallbacks(measured.append, launches.append)
    speed.measure(spec, plan.candidates, tmp_path, findings)
    assert {m.candidate for m in measured} == {c.id for c in plan.candidates}
    assert all(m.step_s and m.train_rows == 160 and m.eval_rows == 50 for m in measured)
    assert all(m.overheads and m.speed and m.environment["torch"] for m in measured)
    assert {launch.placement for launch in launches} == {p.name for p in plan.placements}

    predictions = predict.predict_all(spec, plan.candidates, measured, launches)
    trials: list[TrialResult] = []
    on_l40s = next(c for c in plan.candidates if c.id == "L40S:2/16/fp32")
    hyperparameter_search.run_trials(
        spec,
        on_l40s,
        search.trial_budget(spec, 160),
        [],
        concurrent=1,
        storage=tmp_path,
        on_trial=trials.append,
    )
    assert sorted(t.params["train.optimizer.lr"] for t in trials) == [1e-3, 3e-3]
    assert all(0 <= t.metrics["accuracy"] <= 1 and not t.failure for t in trials)
    assert select.select(spec, plan, predictions, trials).prediction is not None
    assert eventually(lambda: _worker_groups_left() == [])


@contextlib.contextmanager
def a_run(spec: JobSpec, folder: Path, tell: Notify) -> Iterator[Context]:
    """A run with workers of its own and a place in the queue, of which nothing may be left."""
    from orchestrator.stages import queue_actor
    from orchestrator.stages.secrets import Secrets
    from orchestrator.stages.workers import Workers

    storage, workers = open_storage(folder), Workers(Secrets(), folder, 60.0)
    devices = queue_actor.LeasedDevices(Ticket("r", spec.name, "ann", 0, 1e9))
    run = Run("r", storage)
    try:
        with contextlib.closing(workers):
            yield Context(spec, run, storage, tell, 0, devices=devices, workers=workers)
    finally:
        devices.leave()
    assert not [each for each in queue_actor.entries() if each.run == "r"]
    # a worker that is only starting ends once it has started
    assert eventually(lambda: _worker_groups_left() == [], within_s=120)


def test_another_placement_is_probed_while_trials_run(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Both are leased, each candidate has its measurement, and nothing stays held."""
    from cluster.discovery import discover
    from orchestrator import sweeping
    from orchestrator.stages import queue_actor

    spec = sweep_job(reviews, tiny_model, "A100-80GB:1", "L40S:1")
    plan = make_plan(spec, discover(), shape_of(tiny_model))
    first, second = dict.fromkeys(c.placement.name for c in plan.probing_order)
    told, leased = list[Notice](), set[str]()

    def tell(notice: Notice) -> None:
        told.append(notice)
        leased.update(each.devices for each in queue_actor.entries() if each.run == "r")

    with a_run(spec, tmp_path, tell) as context:
        has_room = context.devices.has_room
        assert eventually(lambda: all(map(has_room, plan.placements)), within_s=60)
        found = sweeping.run_sweep(context, plan)
        launches = context.run.read_all("launches", Launch)
    starts = [isinstance(n, Remark) and f"{second}: starting workers" in n.text for n in told]
    trials = [isinstance(n, Progress) and n.stage == "trials" for n in told]
    assert starts.index(True) < trials.index(True)
    assert f"{first}, {second}" in leased
    assert {m.candidate for m in found.measurements} == {c.id for c in plan.candidates}
    assert [trial.candidate.split("/")[0] for trial in found.trials] == [first, first]
    assert {launch.placement for launch in launches} == {first, second}


@pytest.mark.slow
def test_probes_beside_trials_that_are_interrupted_end_with_them(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    from cluster.discovery import discover
    from orchestrator.probing_beside import probing_beside
    from orchestrator.speeds import Speeds

    spec = sweep_job(reviews, tiny_model, "L40S:1")
    plan, told = make_plan(spec, discover(), shape_of(tiny_model)), list[Notice]()
    begins = threading.Event()

    def tell(notice: Notice) -> None:
        told.append(notice)
        if isinstance(notice, Remark) and "starting workers" in notice.text:
            begins.set()

    def interrupt() -> None:
        assert begins.wait(240)
        raise KeyboardInterrupt

    with a_run(spec, tmp_path, tell) as context:
        speeds, began = Speeds(context, plan), time.monotonic()
        with pytest.raises(KeyboardInterrupt), probing_beside(context, speeds, plan.placements):
            interrupt()
        assert time.monotonic() - began < 300
        assert not speeds.measured


@pytest.mark.parametrize("values", [{"loguniform": [1e-4, 1e-2]}, [5e-3, 2e-3, 3e-3]])
def test_what_earlier_trials_found_is_used_and_a_killed_one_is_run_again(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path, values: object
) -> None:
    """Ranges are searched, lists are tried in full; the kill comes before the first report."""
    from cluster.discovery import discover
    from orchestrator.stages import hyperparameter_search

    lr = "train.optimizer.lr"
    spec = sweep_job(reviews, tiny_model, "cpu:1")
    whole = spec.model_dump(mode="json", exclude_unset=True)
    whole["sweep"] |= {"search_space": {lr: values}, "trials": 3, "trial_share": 0.5}
    spec = JobSpec.model_validate(whole)
    candidate = make_plan(spec, discover(), shape_of(tiny_model)).candidates[0]
    known = TrialResult("earlier", candidate.id, {lr: 5e-3}, {"accuracy": 0.9})
    trials: list[TrialResult] = []
    killed, have_ended = list[psutil.Process](), threading.Event()
    killer = threading.Thread(target=kill_a_trial, args=(killed, have_ended))
    killer.start()
    hyperparameter_search.run_trials(
        spec,
        candidate,
        search.trial_budget(spec, 160),
        [known],
        concurrent=2,
        storage=tmp_path,
        on_trial=trials.append,
    )
    have_ended.set()
    killer.join()
    assert killed
    assert len(trials) == 2
    assert not any(trial.failure for trial in trials)
    assert all(1e-4 <= trial.params[lr] <= 1e-2 for trial in trials)
    assert len({trial.params[lr] for trial in (*trials, known)}) == 3


def kill_a_trial(killed: list[psutil.Process], have_ended: threading.Event) -> None:
    """The first that there is, unless all have ended before; a trial lasts but a second."""
    while not killed and not have_ended.wait(0.01):
        killed += ray_processes("ray::ImplicitFunc.train")[:1]
    for process in killed:
        process.kill()


def test_a_trial_that_dies_as_it_begins_is_named_by_its_configuration(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    """Ray Tune's own result has none then."""
    import ray.tune

    from orchestrator.stages import tuning

    class Dying(ray.tune.Trainable):
        """Ends its process before Ray can ask it anything."""

        def setup(self, config: dict[str, object]) -> None:
            os._exit(1)

    reports = tuning.Reports(lambda *_: None)
    (result,) = ray.tune.Tuner(
        ray.tune.with_resources(Dying, tuning.HEAD_ONLY),
        param_space={"params": ray.tune.grid_search([{"lr": 0.1}])},
        run_config=tuning.run_config("dying", tmp_path, reports),
    ).fit()
    ((config, words),) = reports.crashed
    assert config["params"] == {"lr": 0.1}
    assert words
    assert not result.config


def test_a_trial_stopped_from_outside_leaves_its_devices_free(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """The driver is killed as Tune kills it, without a chance to clean up."""
    import ray

    from cluster.discovery import discover
    from orchestrator.stages.devices import release
    from orchestrator.stages.group import Start, stream

    placement = place(AcceleratorRequest("L40S", 2), discover(), {})
    config = training_config(reviews, tiny_model, micro_batch_size=16, epochs=5000.0)

    @ray.remote(num_cpus=0)
    class Driver:
        """Stands for a trial's process."""

        def run(self) -> str:
            """Start a long training and return the group's id."""
            groups: list[str] = []
            events = stream(Start(train, config, placement, "x", tmp_path, groups.append))
            next(events)
            self.kept = events
            return groups[0]

    driver = Driver.remote()
    group = ray.get(driver.run.remote(), timeout=120)
    assert _worker_groups_left() == ["CREATED"]
    ray.kill(driver)
    release(group)
    assert eventually(lambda: _worker_groups_left() == [])
    release(group)


def test_ray_train_gives_the_loss_curve_of_one_plain_process(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Earns its fifteen seconds: two DDP workers x 16 under Ray against 1 x 32 without it."""
    from cluster.discovery import discover
    from orchestrator.stages.group import Start, stream

    reference: list[Event] = []
    train(training_config(reviews, tiny_model), reference.append)
    placement = place(AcceleratorRequest("cpu", 2), discover(), {})
    config = training_config(reviews, tiny_model, micro_batch_size=16)
    spread = list(stream(Start(train, config, placement, "curve", tmp_path)))
    assert losses_of(spread) == pytest.approx(losses_of(reference), abs=1e-5)
    assert len(losses_of(spread)) == 5


class _Kept:
    """Gives orders to workers that are kept on two cores."""

    def __init__(self, config: TrainingConfig, folder: Path) -> None:
        from cluster.discovery import discover
        from orchestrator.stages.secrets import Secrets
        from orchestrator.stages.workers import Workers

        self.config, self.folder = config, folder
        self.placement = place(AcceleratorRequest("cpu", 2), discover(), {})
        self.workers = Workers(Secrets(), folder, 60.0)

    def train(self, changed: TrainingConfig, report: Callable[[Event], None]) -> list[str]:
        """Train as a trial does; returns the placement groups."""
        from orchestrator.stages.line import packed
        from orchestrator.stages.orders import train_in_worker

        self.workers.on(self.placement)
        self.workers.line.run(packed(train_in_worker, changed, keeps=True), report)
        return self.workers.groups

    def sessions(self) -> list[bool]:
        """Whether each worker has a session that can start over."""
        from orchestrator.stages.line import packed

        found: list[Event] = []
        self.workers.line.run(packed(tell_sessions, None, keeps=True), found.append)
        return [event == OutOfMemory("", "kept") for event in found]

    def fit(self, name: str, report: Callable[[Event], None] = lambda _: None) -> list[float]:
        """Train as the winner is trained; returns the losses."""
        from orchestrator.stages import fit as fitting

        store, rules = CheckpointStore(self.folder / name), fitting.Rules(workers=self.workers)

        def fail(*what: object) -> None:
            raise AssertionError(what)

        found = fitting.fit(self.config, self.placement, store, rules, report, fail, lambda _: None)
        return [loss for _, loss in found.losses]


def tell_sessions(_: None, report: Callable[[Event], None], leave: object, kept: Kept) -> None:
    """The event says whether this worker has one; each reports it."""
    report(OutOfMemory("", "kept" if kept._beginning else "none"))


def test_kept_workers_give_bit_by_bit_what_fresh_ones_give(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """After a trial that is stopped early they stay, after one that fails there are new ones."""
    from orchestrator.stages.failures import GroupError

    def stop(event: Event) -> None:
        if isinstance(event, Stepped):
            sys.exit()  # as Tune's report does in a trial that is stopped early

    config = training_config(reviews, tiny_model, micro_batch_size=16)
    steep, gentle = (config.optimizer.model_copy(update={"lr": lr}) for lr in (1e30, 1e-5))
    other = dataclasses.replace(config, optimizer=gentle, seed=config.seed + 1)
    kept = _Kept(config, tmp_path)
    events, others, again, afresh, later = (list[Event]() for _ in range(5))
    with contextlib.closing(kept.workers):
        with pytest.raises(SystemExit):
            kept.train(dataclasses.replace(config, epochs=5000.0), stop)
        first = kept.workers.groups
        assert kept.train(config, events.append) == first
        kept.train(other, others.append)
        kept.train(config, again.append)
        assert losses_of(others) != losses_of(again)
        assert kept.sessions() == [True, True]
        losses = [losses_of(events), losses_of(again), kept.fit("kept")]
        assert (kept.workers.groups, kept.workers.warm) == (first, kept.placement.name)
        with pytest.raises(GroupError, match="loss"):
            kept.train(dataclasses.replace(config, optimizer=steep), lambda _: None)
        losses.append(kept.fit("fresh"))
        assert kept.train(other, afresh.append) != first
        kept.train(config, later.append)
    assert eventually(lambda: _worker_groups_left() == [])
    assert len(losses[0]) == 5
    assert losses_of(others) == losses_of(afresh)
    assert all(each == losses[0] for each in (*losses, losses_of(later)))


@pytest.mark.slow
def test_a_fit_in_kept_workers_leaves_with_a_checkpoint_and_goes_on_in_fresh_ones(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Catches kept workers that leave without a checkpoint, or cannot be followed by others."""
    kept = _Kept(training_config(reviews, tiny_model, micro_batch_size=16, epochs=200), tmp_path)
    saved = list[Saved]()

    def leave(event: Event) -> None:
        if isinstance(event, Stepped):
            kept.workers.leave.set()  # as a signal or new devices do
        if isinstance(event, Saved):
            saved.append(event)

    with contextlib.closing(kept.workers):
        kept.workers.on(kept.placement)
        assert eventually(lambda: kept.workers.serves(kept.placement), within_s=90)
        with pytest.raises(TrainingError, match="run again with --resume"):
            kept.fit("left", leave)
        assert not kept.workers.serves(kept.placement)
        rest, whole = kept.fit("left"), kept.fit("whole")
    (left_after,) = {each.step for each in saved}
    assert 0 < left_after < 1000
    assert len(whole) == 1000
    assert rest == whole[left_after:]


def test_the_trials_of_a_placement_share_one_group(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    import ray.util

    from cluster.discovery import discover
    from orchestrator.stages import hyperparameter_search

    lr = "train.optimizer.lr"
    spec = sweep_job(reviews, tiny_model, "cpu:2")
    whole = spec.model_dump(mode="json", exclude_unset=True)
    whole["sweep"] |= {"search_space": {lr: [1e-3, 2e-3, 3e-3]}, "trials": 3}
    spec = JobSpec.model_validate(whole)
    candidate = make_plan(spec, discover(), shape_of(tiny_model)).candidates[0]
    trials, before = list[TrialResult](), set(ray.util.placement_group_table())
    hyperparameter_search.run_trials(
        spec,
        candidate,
        search.trial_budget(spec, 160),
        [],
        concurrent=1,
        storage=tmp_path,
        on_trial=trials.append,
    )
    assert sorted(trial.params[lr] for trial in trials) == [1e-3, 2e-3, 3e-3]
    assert not any(trial.failure for trial in trials)
    table = ray.util.placement_group_table()
    assert sum(len(table[name]["bundles"]) == 2 for name in set(table) - before) == 1
    assert eventually(lambda: _worker_groups_left() == [])


def losses_of(events: list[Event]) -> list[float]:
    """The loss of every optimizer step."""
    return [event.loss for event in events if isinstance(event, Stepped)]


def test_a_worker_on_the_wrong_sku_refuses_to_work(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Shows that the assertion inside the workers can fail."""
    from cluster.discovery import discover
    from orchestrator.stages.group import Start, stream

    t4 = discover().with_sku("T4")[0]
    mislabelled = Placement("L40S", 2, (t4.id,), 48.0, 1.0, simulated=True)
    config = training_config(reviews, tiny_model)
    with pytest.raises(TrainingError, match="a worker of L40S:2 was started on a node of T4"):
        list(stream(Start(_do_nothing, config, mislabelled, "t", tmp_path)))


def test_a_worker_that_answers_ray_and_never_moves_is_taken_to_hang(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    from cluster.discovery import discover
    from orchestrator.stages.failures import GroupError
    from orchestrator.stages.group import Start, stream

    def stand_still(*_: object) -> None:
        threading.Event().wait(600)

    placement = place(AcceleratorRequest("cpu", 1), discover(), {})
    with pytest.raises(
        GroupError, match=r"reported nothing for 3 s \(train.hang_after\)"
    ) as caught:
        list(stream(Start(stand_still, None, placement, "x", tmp_path, silence_s=3)))
    assert caught.value.failed.cause is Cause.HANG
    assert caught.value.failed.nodes == set(placement.node_ids)
    assert eventually(lambda: _worker_groups_left() == [])


def test_what_a_job_keeps_secret_reaches_its_workers_and_not_their_words(
    ray_cluster: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that work leaves the cores to endpoints: these keep a niceness of 0."""
    from cluster.discovery import discover
    from orchestrator.stages.failures import GroupError
    from orchestrator.stages.group import Start, stream
    from orchestrator.stages.secrets import secrets_of

    phrase = "open sesame, quoth he"
    expected = hashlib.sha256(phrase.encode()).hexdigest()
    spec = job(secrets=["LAB_PHRASE"])
    monkeypatch.delenv("LAB_PHRASE", raising=False)
    with pytest.raises(RunError, match="secrets names LAB_PHRASE, which is not set"):
        secrets_of(spec)
    monkeypatch.setenv("LAB_PHRASE", phrase)
    secrets = secrets_of(spec)
    assert phrase not in repr(secrets)

    def blurt(*_: object) -> None:
        value = os.environ["LAB_PHRASE"]
        own = f"niceness {os.nice(0)}, {hashlib.sha256(value.encode()).hexdigest()}"
        raise TrainingError(f"{own} is of {value}")

    placement = place(AcceleratorRequest("cpu", 1), discover(), {})
    with pytest.raises(GroupError, match=rf"niceness 15, {expected} is of \*\*\*$"):
        list(stream(Start(secrets.bound_to(blurt), None, placement, "x", tmp_path)))


def test_a_sku_that_is_not_there_fails_when_planning(
    ray_cluster: Connection, reviews: Path, tiny_model: str
) -> None:
    from cluster.discovery import discover

    spec = sweep_job(reviews, tiny_model, "RTX4090:2")
    with pytest.raises(InfeasibleError, match=r"no nodes for RTX4090:2: .*closest is T4:2"):
        make_plan(spec, discover(), shape_of(tiny_model))


def test_a_second_timing_that_fails_leaves_the_first_and_the_sweep_goes_on(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """The rows are gone by then."""
    from cluster.discovery import discover
    from orchestrator.availability import Availability
    from orchestrator.probing import confirm
    from orchestrator.speeds import Speeds

    spec = sweep_job(reviews, tiny_model, "cpu:1")
    gone = spec.data.train.model_copy(update={"path": str(tmp_path / "gone.csv")})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"train": gone})})
    plan, storage = make_plan(spec, discover(), None), open_storage(tmp_path)
    told: list[Notice] = []
    context = Context(spec, Run("r", storage), storage, told.append, 0)
    best = plan.candidates[0]
    context.run.append("measurements", measurement(best.id))
    speeds = Speeds(context, plan)
    winner = select.Winner(best, {}, None, "", finalists=(best.id,))
    available = Availability(context, plan)
    assert confirm(context, plan, speeds, winner, available) is False
    assert speeds.every == (measurement(best.id),)
    waited, said = (notice.text for notice in told if isinstance(notice, Remark))
    assert waited == "cpu:1: starting workers; candidates to probe: 1"
    assert said.startswith(f"{best.id} could not be timed again, so the first timing counts: ")
    assert "gone.csv" in said


@pytest.mark.slow
def test_a_long_run_is_probed_compiled_too_and_a_failure_leaves_it_as_it_is(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """The first is on a CPU, which leaves nothing to compile; the second has no rows left."""
    from cluster.discovery import discover
    from orchestrator.availability import Availability
    from orchestrator.probing import probe_compiled
    from orchestrator.speeds import Speeds

    spec = sweep_job(reviews, tiny_model, "cpu:1")
    plain = make_plan(spec, discover(), None).candidates[0]
    compiled = replace(plain, compiled=True)
    plan = Plan((plain,), (), compiled=(compiled,))
    gone = spec.data.train.model_copy(update={"path": str(tmp_path / "gone.csv")})
    broken = spec.model_copy(update={"data": spec.data.model_copy(update={"train": gone})})
    storage, found = open_storage(tmp_path), dict[str, Speeds]()
    for name, job_of_run in (("works", spec), ("fails", broken)):
        told: list[Notice] = []
        context = Context(job_of_run, Run(name, storage), storage, told.append, 0)
        context.run.append("measurements", measurement(plain.id, 0.5, steps=10_000))
        speeds = found[name] = Speeds(context, plan)
        probe_compiled(context, speeds, Availability(context, plan))
        assert context.run.value("plan", Plan).candidates == (plain, compiled)
        assert {m.candidate for m in Speeds(context, plan).measurements} == {plain.id, compiled.id}
    (timed,), (failed,) = (speeds.measured[compiled.id] for speeds in found.values())
    assert timed.overheads
    assert {p.candidate for p in found["works"].predictions} == {plain.id, compiled.id}
    assert (failed.step_s, failed.fault) == (None, "compiling failed")
    assert [p.candidate for p in found["fails"].predictions] == [plain.id]
    assert any(isinstance(n, Remark) and "gone.csv" in n.text for n in told)


def test_bad_data_reaches_the_user_in_words(
    ray_cluster: Connection, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    from cluster.discovery import discover
    from orchestrator.stages import speed

    spec = sweep_job(reviews, tiny_model, "L40S:2")
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"label": "stars"})})
    plan = make_plan(spec, discover(), None)
    with pytest.raises(TrainingError, match="has no column 'stars'; its columns are text, label"):
        speed.measure(
            spec, plan.candidates, tmp_path, speed.ProbeCallbacks(lambda _: None, lambda _: None)
        )


def _do_nothing(*_: object) -> None:
    raise ClusterError("reached work that the check should have prevented")


def _worker_groups_left() -> list[str]:
    """Names of placement groups that still hold resources."""
    import ray.util

    table = ray.util.placement_group_table()
    return [group["state"] for group in table.values() if group["state"] != "REMOVED"]
