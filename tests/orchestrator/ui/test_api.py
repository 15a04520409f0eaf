"""The dashboard's answers, from a storage as runs write it."""

import contextlib
import json
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.storage.storage import open_storage
from jobs.training.events import Evaluated, Started, Stepped
from orchestrator.decisions import select
from orchestrator.notices import Notice, Pace
from orchestrator.records import cancellation, lease, registry, run_log, runs
from orchestrator.ui import live, operations, run_page
from orchestrator.watch import FitWatch
from tests.builders import eventually, inventory, plan_of
from tests.orchestrator.ui import stored
from tests.orchestrator.ui.asking import client
from tests.orchestrator.ui.stored import Stored

OLD = Path(__file__).parents[1] / "storage-0.1.0.tar.xz"


def test_runs_models_and_endpoints_are_listed(full: Stored, tmp_path: Path) -> None:
    with client(full.storage, tmp_path) as reader:
        me = reader.get("/api/me").json()
        assert (me["name"], me["scope"], me["storage"]) == ("eve", "read", str(full.storage))
        listed = {each["id"]: each for each in reader.get("/api/runs").json()}
        assert listed[full.running]["state"] == "running"
        assert listed[full.running]["owner"] == stored.OWNER
        assert listed[full.failed]["state"] == "failed"
        done = listed[full.completed[1]]
        assert (done["state"], done["metric"], done["value"]) == ("completed", "accuracy", 0.91)
        models = reader.get("/api/models").json()
        deployed = [each["version"]["id"] for each in models if each["is_deployed"]]
        assert len(models) == 3
        assert deployed == [registry.deployed(full.storage, "reviews")[-1]]
        view = reader.get("/api/cluster").json()
        assert (view["is_up"], view["found"], view["error"]) == (False, None, "")


def test_a_run_has_its_plan_options_trials_curves_and_receipt(full: Stored, tmp_path: Path) -> None:
    with client(full.storage, tmp_path) as reader:
        found = reader.get(f"/api/runs/{full.completed[0]}").json()
        assert found["inputs"] == {"data.train": "1a2b", "code": "3c4d"}
        winner = [each["id"] for each in found["candidates"] if each["is_winner"]]
        assert winner == [found["summary"]["winner"]] == [found["chosen"]["candidate"]]
        assert sum(each["is_pareto"] for each in found["options"]) == 2
        assert [len(trial["history"]) for trial in found["trials"]] == [4, 4, 4]
        assert found["curves"]["losses"][:2] == [[1, 1.0], [2, 0.5]]
        assert found["curves"]["metrics"] == {"accuracy": [[50, 0.8], [100, 0.9]]}
        assert found["spent"]["is_final"]
        assert found["spent"]["cost_usd"] == pytest.approx(found["summary"]["cost_usd"])
        assert "receipt of" in found["receipt"]
        going = reader.get(f"/api/runs/{full.running}").json()
        assert going["curves"]["losses"][-1] == [5, 0.2]
        assert going["curves"]["metrics"] == {"accuracy": [[5, 0.8]], "f1": [[5, 0.79]]}
        assert not going["spent"]["is_final"]


def test_runs_are_compared_in_what_differs(full: Stored, tmp_path: Path) -> None:
    with client(full.storage, tmp_path) as reader:
        found = reader.get("/api/compare", params={"run": full.completed}).json()
        assert [run["id"] for run in found["runs"]] == list(full.completed)
        assert found["fields"] == {"train.optimizer.lr": list(stored.RATES)}
        many = reader.get("/api/compare", params={"run": [full.failed] * 9})
        assert (many.status_code, "name 2 to 8" in many.json()["error"]) == (404, True)


def test_a_version_has_its_origin_and_who_deployed_it(full: Stored, tmp_path: Path) -> None:
    with client(full.storage, tmp_path) as reader:
        found = reader.get(f"/api/models/reviews/{full.versions[0]}").json()
        assert found["run"] in full.completed
        assert found["inputs"] == {"data.train": "1a2b", "code": "3c4d"}
        assert "name: reviews" in found["job"]
        assert len(found["deployed"]) == 3
        assert all("@" in move["by"] for move in found["deployed"])
        none = reader.get("/api/models/reviews/000000000000")
        assert (none.status_code, "has no version" in none.json()["error"]) == (404, True)


def test_a_storage_of_an_older_release_is_shown(tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    storage = open_storage(tmp_path / "winnow-storage-0.1.0/storage")
    with client(storage, tmp_path) as reader:
        listed = reader.get("/api/runs").json()
        assert [each["state"] for each in listed] == ["interrupted", "completed"]
        for each in listed:
            page = reader.get(f"/api/runs/{each['id']}").json()
            assert page["summary"] == each
        (model,) = reader.get("/api/models").json()
        found = reader.get(f"/api/models/reviews/{model['version']['id']}").json()
        assert found["run"] == listed[1]["id"]
        assert set(found["inputs"]) == {"data.train", "data.eval", "model.base", "code"}
        assert [move["by"] for move in found["latest"]] == [""]


def test_what_a_run_says_is_streamed_until_its_end(full: Stored, tmp_path: Path) -> None:
    with client(full.storage, tmp_path) as reader:
        text = reader.get(f"/api/runs/{full.failed}/events").text
    events = [part.split("\n") for part in text.strip().split("\n\n")]
    assert [name for name, _ in events] == ["event: lines", "event: state"]
    lines = json.loads(events[0][1].removeprefix("data: "))
    assert [line["text"] for line in lines["lines"]] == [
        "created by bob@laptop",
        "failed: no data",
    ]
    assert json.loads(events[1][1].removeprefix("data: ")) == {"state": "failed", "events": 2}


def test_what_a_run_cost_so_far_leaves_out_its_pauses(tmp_path: Path) -> None:
    """Interrupted after an hour, resumed after days; died an hour later, and is up for an hour."""
    storage, spec = open_storage(tmp_path), stored.swept()
    run, now = runs.create(storage, spec, stored.NOW), stored.NOW
    plan = plan_of(spec, inventory(T4=1, V100_16GB=1))
    winner = select.select_unmeasured(plan)
    price = winner.candidate.placement.price_usd_per_hour
    assert price
    run.write("plan", plan)
    run.write("winner", winner)
    hours: dict[float, dict[str, str]] = {
        0.0: {"event": "created", "digest": "1a"},
        1.0: {"event": "finished", "stage": "winner"},
        2.0: {"event": "interrupted"},
        90.0: {"event": "resumed"},
        90.1: {"event": "owned", "epoch": "2"},
        200.0: {"event": "owned", "epoch": "3"},
    }
    notes = [
        {"time": (now + timedelta(hours=at)).isoformat(), **note} for at, note in hours.items()
    ]
    text = "".join(f"{json.dumps(note)}\n" for note in notes)
    storage.objects.write(f"runs/{run.id}/{runs.JOURNAL}", text.encode())
    line = run_log.Line(now + timedelta(hours=91.1), "fit", "5/90 loss 0.1, 3 samples/s")
    run.append(run_log.NAME, line)
    key = runs.lease_key(spec)
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        notes[-1] |= {"epoch": str(held.epoch), "lease": key}
        text = "".join(f"{json.dumps(note)}\n" for note in notes)
        storage.objects.write(f"runs/{run.id}/{runs.JOURNAL}", text.encode())
        page = run_page.page_of(run, live.Follower(storage).said(run), now + timedelta(hours=201))
    assert page.summary.state == "running"
    assert page.spent.cost_usd == pytest.approx(price * (1 + 1 + 1))
    assert not page.spent.is_final


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Commands that begin inside run from the end of it on."""
    started, start = list["subprocess.Popen[str]"](), operations._start

    def begin(*arguments: Any) -> "subprocess.Popen[str]":
        started.append(start(*arguments))
        started[-1].send_signal(signal.SIGSTOP)
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "_start", begin)
        try:
            yield
        finally:
            for process in started:
                process.send_signal(signal.SIGCONT)


def test_an_operator_cancels_a_run_through_its_command(full: Stored, tmp_path: Path) -> None:
    """The command refuses the run that has failed, and asks the one that runs to end."""
    with client(full.storage, tmp_path, "operate") as operator:
        with paused():
            begun = operator.post(f"/api/runs/{full.failed}/cancel")
            assert (begun.status_code, begun.json()["by"]) == (202, "olga")
            again = operator.post(f"/api/runs/{full.failed}/cancel")
            assert (again.status_code, "goes on" in again.json()["error"]) == (404, True)

        def ended() -> bool:
            return bool(operator.get("/api/operations").json()[0]["state"] != "running")

        assert eventually(ended, within_s=240)
        (done,) = operator.get("/api/operations").json()
        assert (done["state"], "has ended already" in done["text"]) == ("failed", True)
        operator.post(f"/api/runs/{full.running}/cancel")
        run = runs.find(full.storage, full.running)
        assert eventually(lambda: cancellation.requested(run) is not None, within_s=240)
        request = cancellation.requested(run)
        assert request
        assert request.by == "olga"


def test_curves_are_read_from_what_training_tells() -> None:
    told = list[Notice]()
    watch = FitWatch(told.append, 0.5, None, lambda: 0.0)
    watch.show(Started(40, 0, 320, 100, ("a",)))
    for step in (10, 20):
        watch.show(Stepped(step, 2.0 / step, 320, 3200, 3200, 1.0))
        watch.show(Evaluated(step, {"accuracy": step / 100, "recall@10": 12345.0}))
    lines = [run_log.line_of(each, stored.NOW, Pace(0, lambda: 0.0)) for each in told]
    found = live.curves_of([line for line in lines if line])
    assert found.losses == ((10, 0.2), (20, 0.1))
    assert found.metrics["accuracy"] == ((10, 0.1), (20, 0.2))
    assert found.metrics["recall@10"] == ((10, 12345.0), (20, 12345.0))
