"""One owner at a time, on a folder and on a bucket."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.storage.objects import Objects
from jobs.storage.storage import open_storage
from orchestrator.records import lease
from orchestrator.records.lease import HOLDER, held
from tests.builders import eventually

KEY, WHAT = "leases/a-job", "job a-job"


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a lease is."""
    return str(tmp_path) if request.param == "folder" else str(request.getfixturevalue("bucket"))


@pytest.fixture
def objects(place: str, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """The same, opened, and with beats that come faster."""
    quicken(monkeypatch)
    return open_storage(place).objects


def quicken(monkeypatch: pytest.MonkeyPatch, stale_s: float = 60.0) -> None:
    """Beats come faster; who is silent for `stale_s`, as a busy machine lets it be, is followed."""
    monkeypatch.setattr(lease, "BEAT_S", 0.2)
    monkeypatch.setattr(lease, "STALE_S", stale_s)
    monkeypatch.setattr(lease, "LOOK_S", 0.05)


def hold(place: str, ready: str, host: str) -> None:
    """Hold a lease until the process ends, as another host would; its owner's words to a file."""
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        patch.setattr(lease.socket, "gethostname", lambda: host)
        with held(open_storage(place).objects, KEY, WHAT, print) as owned:
            Path(ready).write_text("held", encoding="utf-8")
            while True:
                time.sleep(0.05)
                try:
                    owned.check()
                except RunError as error:
                    Path(ready).write_text(str(error), encoding="utf-8")
                    return


@pytest.fixture
def holder(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> multiprocessing.Process:
    """Another process that has the lease."""
    host = getattr(request, "param", lease.socket.gethostname())
    ready = tmp_path / "ready"
    process = multiprocessing.get_context("spawn").Process(
        target=hold, args=(place, str(ready), host), daemon=True
    )
    process.start()
    assert eventually(ready.exists, within_s=180)
    return process


def test_a_lease_that_was_given_back_is_taken_with_a_later_epoch(objects: Objects) -> None:
    with held(objects, KEY, WHAT, print) as first:
        first.check()
    with held(objects, KEY, WHAT, print) as second:
        assert (first.epoch, second.epoch) == (1, 2)


def test_a_second_owner_is_refused_while_the_first_lives(
    objects: Objects, holder: multiprocessing.Process
) -> None:
    told: list[str] = []
    with pytest.raises(RunError, match=f"process {holder.pid} on .* already runs"):
        lease._acquire(objects, KEY, WHAT, told.append)
    assert "waiting to see whether it still runs" in told[0]
    holder.kill()


def test_a_killed_owner_of_this_machine_is_followed_at_once(
    objects: Objects, holder: multiprocessing.Process
) -> None:
    holder.kill()
    holder.join()
    told: list[str] = []
    with held(objects, KEY, WHAT, told.append) as mine:
        assert mine.epoch == 2
    assert not told


@pytest.mark.parametrize("holder", ["elsewhere"], indirect=True)
def test_a_silent_owner_elsewhere_is_followed_and_refused_when_it_wakes(
    objects: Objects,
    holder: multiprocessing.Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert holder.pid
    os.kill(holder.pid, signal.SIGSTOP)
    quicken(monkeypatch, stale_s=1.5)
    with held(objects, KEY, WHAT, print) as mine:
        os.kill(holder.pid, signal.SIGCONT)
        holder.join(timeout=60)
        assert "has taken over job a-job" in (tmp_path / "ready").read_text(encoding="utf-8")
        mine.check()
        found = objects.read(KEY)
        assert found
        assert HOLDER.validate_json(found.content).process == os.getpid()


def test_of_many_that_want_it_one_gets_it(objects: Objects) -> None:
    refused: list[RunError] = []
    epochs: list[int] = []
    over = threading.Event()

    def want() -> None:
        try:
            with held(objects, KEY, WHAT, lambda _: None) as owned:
                epochs.append(owned.epoch)
                over.wait(20)
        except RunError as error:
            refused.append(error)
            if len(refused) == 9:
                over.set()

    threads = [threading.Thread(target=want) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert epochs == [1]
    assert len(refused) == 9
