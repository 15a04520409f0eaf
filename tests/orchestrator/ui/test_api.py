"""The dashboard's answers, from a storage as runs write it."""

import itertools
import json
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute

from jobs.storage.storage import Storage, open_storage
from jobs.training.events import Evaluated, Started, Stepped
from orchestrator.notices import Notice, Pace
from orchestrator.records import cancellation, lease, lineage, registry, removal, run_log, runs
from orchestrator.ui import live
from orchestrator.ui.access import Tokens
from orchestrator.ui.app import create_application, routes_of
from orchestrator.ui.listing import FRESH_S, SEEN_S, RunList
from orchestrator.ui.operations import Place
from orchestrator.watch import FitWatch
from serve.http import auth
from serve.http.auth import Owner
from tests.builders import eventually, job
from tests.orchestrator.records import acting
from tests.orchestrator.ui import stored
from tests.orchestrator.ui.stored import Stored

OLD = Path(__file__).parents[1] / "storage-0.1.0.tar.xz"
URL = "http://127.0.0.1:8270"
OWNERS = {"read": Owner("eve", "read"), "operate": Owner("olga", "operate")}
BUTTONS = {
    "/api/runs/{identity}/cancel",
    "/api/models/{name}/{version}/promote",
    "/api/models/{name}/rollback",
    "/api/endpoints/{name}/undeploy",
}


def client(storage: Storage, folder: Path, scope: str = "read") -> TestClient:
    """A client with a token of a scope, named as the scope."""
    tokens = Tokens({auth.digest(name): owner for name, owner in OWNERS.items()})
    names = frozenset({"127.0.0.1"})
    application = create_application(storage, Place(storage.url, folder), tokens, names)
    return TestClient(application, URL, headers={"Authorization": f"Bearer {scope}"})


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A storage with runs in every state, on a machine without a cluster."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with stored.everything(tmp_path) as found:
        yield found


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


def test_a_read_token_changes_nothing_on_any_route(full: Stored, tmp_path: Path) -> None:
    routes = routes_of(full.storage, Place(full.storage.url, tmp_path)).routes
    paths = {path for path in map(path_of, routes) if path.startswith("/api/")}
    assert paths > BUTTONS
    values = {"identity": full.running, "name": "reviews", "version": full.versions[0]}
    before = content(full.storage.folder)
    with client(full.storage, tmp_path) as reader:
        for path, method in itertools.product(paths, ("POST", "PUT", "PATCH", "DELETE", "QUERY")):
            answer = reader.request(method, path.format(**values))
            assert (answer.status_code, "scope operate" in answer.text) == (403, True), path
        for path in {path for path in paths if not path.endswith("/events")}:
            reader.get(path.format(**values))
        assert reader.get("/api/operations").json() == []
    assert content(full.storage.folder) == before


def test_nothing_is_said_without_a_token_or_to_another_host(full: Stored, tmp_path: Path) -> None:
    routes = routes_of(full.storage, Place(full.storage.url, tmp_path)).routes
    values = {"identity": full.running, "name": "reviews", "version": full.versions[0]}
    with client(full.storage, tmp_path, "operate") as reader:
        for route, method in itertools.product(routes, ("GET", "POST")):
            path = path_of(route).format(**values) or "/index.html"
            other = reader.request(method, path, headers={"Host": "evil.example"})
            assert other.status_code == 421, path
            if path.startswith("/api/"):
                for token in ("", "Bearer wrong", "Basic operate"):
                    refused = reader.request(method, path, headers={"Authorization": token})
                    assert (refused.status_code, list(refused.json())) == (401, ["error"])
        page = reader.get("/", headers={"Authorization": ""})
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self';")
        assert full.running not in page.text


def test_an_operator_cancels_a_run_through_its_command(full: Stored, tmp_path: Path) -> None:
    """The command refuses the run that has failed, and asks the one that runs to end."""
    with client(full.storage, tmp_path, "operate") as operator:
        begun = operator.post(f"/api/runs/{full.failed}/cancel")
        assert (begun.status_code, begun.json()["by"]) == (202, "olga")
        again = operator.post(f"/api/runs/{full.failed}/cancel")
        assert (again.status_code, "goes on" in again.json()["error"]) == (404, True)

        def ended() -> bool:
            return bool(operator.get("/api/operations").json()[0]["state"] != "running")

        assert eventually(ended, within_s=60)
        (done,) = operator.get("/api/operations").json()
        assert (done["state"], "has ended already" in done["text"]) == ("failed", True)
        operator.post(f"/api/runs/{full.running}/cancel")
        run = runs.find(full.storage, full.running)
        assert eventually(lambda: cancellation.requested(run) is not None, within_s=60)
        request = cancellation.requested(run)
        assert request
        assert request.by == "olga"


def test_names_that_commands_could_take_for_options_are_refused(
    full: Stored, tmp_path: Path
) -> None:
    with client(full.storage, tmp_path, "operate") as operator:
        for path in ("runs/--help/cancel", "models/-x/rollback", "endpoints/--help/undeploy"):
            refused = operator.post(f"/api/{path}")
            assert (refused.status_code, "is not valid" in refused.json()["error"]) == (422, True)
        assert operator.get("/api/operations").json() == []


def test_500_runs_and_50_models_are_listed_in_a_second(tmp_path: Path) -> None:
    """In processor time, which other tests on the machine do not lengthen."""
    storage = open_storage(tmp_path / "storage")
    first = runs.create(storage, job(), stored.NOW, "alice@laptop")
    first.note("failed", error="no data")
    for number in range(1, 500):
        copy = first.id.replace("120000", f"{120000 + number}")
        shutil.copytree(first.folder, first.folder.with_name(copy))
    for number in range(50):
        made = acting.checkpoint(tmp_path / str(number), f"weights {number}")
        registry.publish(job(), made, ("a",), run_id=f"run-{number}", storage=storage)
    begin = time.process_time()
    assert len(RunList(storage).every()) == 500
    assert len(lineage.every(storage)) == 50
    assert time.process_time() - begin < 1.0


def test_a_listing_follows_the_storage(tmp_path: Path) -> None:
    storage, now = open_storage(tmp_path), 0.0
    listing = RunList(storage, lambda: now)
    run, key = runs.create(storage, job(), stored.NOW), runs.lease_key(job())
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        run.note("owned", epoch=str(held.epoch), lease=key)
        assert [each.state for each in listing.every()] == ["running"]
    assert [each.state for each in listing.every()] == ["running"]  # seen a moment ago
    now += FRESH_S
    assert [each.state for each in listing.every()] == ["died"]
    run.note("completed")
    now += FRESH_S
    assert [each.state for each in listing.every()] == ["completed"]
    run.note("resumed")
    now += SEEN_S["completed"]
    assert [each.state for each in listing.every()] == ["died"]
    removal.remove_run(run)
    now += FRESH_S
    assert listing.every() == ()


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


def path_of(route: BaseRoute) -> str:
    """The path of a route, or the prefix of a mount."""
    return str(getattr(route, "path", ""))


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the leases, which their holders renew."""
    found = (path for path in folder.rglob("*") if path.is_file() and "leases" not in path.parts)
    return {str(path): path.read_bytes() for path in found}
