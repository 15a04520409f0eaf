"""What killed processes leave is found and deleted, and nothing else."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.storage import client
from jobs.storage.storage import Storage, open_storage
from orchestrator.records import garbage, registry, runs
from tests import s3
from tests.builders import job
from tests.orchestrator.records import acting

SOON = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(params=["folder", "bucket"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """With one version, one finished run, and one checkpoint of it."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    place = tmp_path / "storage" if request.param == "folder" else None
    storage = open_storage(place or request.getfixturevalue("bucket"))
    reference = acting.checkpoint(tmp_path / "checkpoint", "text")
    registry.publish(job(), reference, ("a", "b"), run_id="one", storage=storage)
    run = runs.create(storage, job(), datetime.now(UTC))
    acting.checkpoint(tmp_path / "other", "text")
    storage.objects.put_folder(f"runs/{run.id}/fit/checkpoints/step-1", tmp_path / "other")
    run.note("completed")
    shutil.rmtree(tmp_path / "home", ignore_errors=True)  # what publishing read back
    return storage


def test_a_clean_storage_has_none(storage: Storage) -> None:
    assert garbage.find(storage, SOON) == []


def test_half_folders_are_deleted_and_whole_ones_stay(storage: Storage) -> None:
    (run,) = runs.every(storage)
    halves = ["models/reviews/0123456789ab", f"runs/{run.id}/fit/checkpoints/step-2"]
    for half in halves:
        storage.objects.write(f"{half}/model/weights", b"0" * 100)
    found = garbage.find(storage, SOON)
    assert [(item.place, item.size) for item in found] == [(half, 100) for half in halves]
    assert garbage.find(storage, datetime.now(UTC) - timedelta(hours=1)) == []
    for item in found:
        garbage.delete(storage, item)
    assert garbage.find(storage, SOON) == []
    assert registry.read(storage, "reviews")
    assert storage.objects.get_folder(f"runs/{run.id}/fit/checkpoints/step-1")


def test_unfinished_files_and_what_ray_wrote_are_deleted(storage: Storage) -> None:
    (run,) = runs.every(storage)
    for name in ("fit/ray/state.json", ".partial-report.html-1"):
        path = run.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    found = garbage.find(storage, SOON)
    assert len(found) == 2
    for item in found:
        garbage.delete(storage, item)
    assert garbage.find(storage, SOON) == []


def test_what_ray_wrote_stays_while_a_completed_run_goes_on(tmp_path: Path) -> None:
    """As a run that was swept and is trained later."""
    storage = open_storage(tmp_path / "storage")
    run = runs.create(storage, job(), datetime.now(UTC))
    (run.folder / "ray").mkdir()
    (run.folder / "ray" / "state.json").write_bytes(b"123")
    run.note("completed")
    place = str(run.folder / "ray")
    assert place in [item.place for item in garbage.find(storage, SOON)]
    run.note("resumed")
    assert place not in [item.place for item in garbage.find(storage, SOON)]


def test_uploads_that_never_ended_are_ended(bucket: str) -> None:
    storage, key = open_storage(bucket), f"{bucket.rpartition('/')[2]}/big"
    server = client.s3()
    upload = server.create_multipart_upload(Bucket=s3.BUCKET, Key=key)["UploadId"]
    server.upload_part(Bucket=s3.BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"0" * 99)
    (found,) = garbage.find(storage, SOON)
    assert found.upload == upload
    garbage.delete(storage, found)
    assert garbage.find(storage, SOON) == []


def test_copies_of_a_bucket_that_nobody_used_for_long_can_go(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    storage = open_storage(bucket)
    reference = acting.checkpoint(tmp_path / "checkpoint", "text")
    model = registry.publish(job(), reference, ("a", "b"), run_id="one", storage=storage)
    place = Path(registry.read(storage, "reviews").path)
    weights = {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert garbage.find(storage, datetime.now(UTC) - timedelta(hours=1)) == []
    (found,) = garbage.find(storage, SOON)
    garbage.delete(storage, found)
    assert not place.exists()
    again = Path(registry.read(storage, "reviews", model.id).path)
    assert {path.name: path.read_bytes() for path in again.rglob("*") if path.is_file()} == weights
