"""A storage of release 0.1.0 still opens: its run is reported, its model served, its rest resumed.

`storage-0.1.0.tar.xz` was written by that release: a trained and published classifier of two small
layers, and a run of 1,200 steps that was interrupted at step 135.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import httpx
import pytest

from cluster.session import Connection
from jobs.loader import load
from jobs.storage.storage import open_storage
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.registry import endpoint_of
from tests.commands import call
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore")
PLACE = Path("/tmp/winnow-storage-0.1.0")
"""Where it was written: jobs keep the whole paths of their data, so it must be there again."""


@pytest.fixture
def old() -> Iterator[Path]:
    """The job files, rows, base and storage of that release, for one test at a time."""
    with filelock.FileLock(f"{PLACE}.lock"):
        shutil.rmtree(PLACE, ignore_errors=True)
        with tarfile.open(Path(__file__).with_name("storage-0.1.0.tar.xz")) as archive:
            archive.extractall(PLACE.parent, filter="data")
        yield PLACE
        shutil.rmtree(PLACE)


def test_its_run_is_reported_and_its_model_listed(old: Path) -> None:
    assert load(old / "job.yaml").metrics == ("accuracy", "f1")
    (run,) = (path.name for path in old.glob("storage/runs/reviews-*"))
    done = call(old, "report", run, "--storage", "storage", "--json")
    receipt = json.loads(done.stdout)["receipt"]
    assert (receipt["metrics"]["accuracy"], receipt["resumed"]) == (1.0, False)
    shown = call(old, "report", run, "--storage", "storage").stdout
    assert "quality   accuracy 1.0000" in shown
    assert "as in training" in shown
    models = json.loads(call(old, "models", "list", "--storage", "storage", "--json").stdout)
    assert [version["name"] for version, _ in models] == ["reviews"]


def test_its_model_version_is_served(old: Path) -> None:
    version = registry.read(open_storage(old / "storage"), "reviews")
    endpoint = endpoint_of(version.task)
    handler: Any = endpoint.load(ReplicaConfig(version, engine="torch-fp32"))
    app.install(handler)
    try:
        assert handler.choice.trials[0].refusal == ""  # it has the scores of its training
        with on_socket(
            app.guarded(endpoint.application()), connections(app.current_handler)
        ) as url:
            body = {"inputs": ["a superb film", "a dull film"]}
            found = httpx.post(f"{url}/predict", json=body).json()
    finally:
        handler.client.close()
        app._current.clear()
    assert [row["label"] for row in found] == ["positive", "negative"]


@pytest.mark.ray
@pytest.mark.e2e
def test_its_interrupted_run_is_resumed(old: Path, ray_cluster: Connection) -> None:
    command = [sys.executable, "-m", "orchestrator", "train", "longer.yaml", "--resume", "--json"]

    def train(*options: str) -> "subprocess.CompletedProcess[str]":
        words = [*command, *options]
        return subprocess.run(
            words, cwd=old, capture_output=True, text=True, check=False, timeout=400
        )

    refused = train()
    assert refused.returncode == 1
    assert "code changed since run longer-" in refused.stdout  # and neither rows nor base did
    done = train("--accept-changes")
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert outcome["receipt"]["resumed"] is True
    assert outcome["model"]["name"] == "longer"
    (state,) = old.glob("storage/runs/longer-*/fit.json")
    assert json.loads(state.read_text(encoding="utf-8"))["checkpoint"]["step"] == 1200
