"""Jobs through Ray's job API, with Ray's own command and with ours."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from jobs.storage.storage import open_storage
from orchestrator.records import runs
from tests.builders import any_of, eventually, free_port

pytestmark = [pytest.mark.ray, pytest.mark.e2e]

ROOT = Path(__file__).parents[3]
RAY = str(Path(sys.executable).with_name("ray"))
SUBMISSIONS = 4
PACKAGES = ("raywinnow", "jobs", "cluster", "serve", "orchestrator")


@pytest.fixture
def project(tmp_path: Path, reviews: Path, tiny_model: str) -> Path:
    """A working directory as `--working-dir .` sends it: the packages, a job and its data."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("train.csv", "eval.csv"):
        shutil.copy(reviews / name, tmp_path)
    job = {
        "version": 1,
        "name": "submitted",
        "model": {"base": tiny_model},
        "data": {
            "train": {"path": "train.csv"},
            "eval": {"path": "eval.csv"},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1, "micro_batch_size": 32},
        "resources": {"any_of": any_of("cpu:1")},
        "storage": str(tmp_path / "storage"),
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster as `ray start --head` makes it; yields the environment that reaches it."""
    token = tmp_path_factory.mktemp("head") / "token"
    token.write_text("f" * 64, encoding="utf-8")
    port, dashboard = free_port(), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": "",
        "PATH": os.pathsep.join((str(Path(RAY).parent), os.environ["PATH"])),  # jobs say `python`
        "DASHBOARD": f"http://127.0.0.1:{dashboard}",
    }
    command = [RAY, "start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
    command += [f"--dashboard-port={dashboard}", f"--ray-client-server-port={free_port()}"]
    command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert eventually(lambda: answers(dashboard), within_s=240)
        yield environment
    finally:
        process.terminate()  # it stops what it started
        if not eventually(lambda: process.poll() is not None):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    """Whether something listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def call(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_ray_job_submit_runs_the_job(head: dict[str, str], project: Path) -> None:
    address = ["--address", head["DASHBOARD"]]
    command = [RAY, "job", "submit", *address, "--submission-id", "by-ray", "--working-dir", "."]
    done = call([*command, "--", "python", "-m", "orchestrator", "run", "job.yaml"], project, head)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Job 'by-ray' succeeded" in done.stdout
    assert "receipt of submitted-" in done.stdout
    status = call([RAY, "job", "status", *address, "by-ray"], project, head)
    assert "Job 'by-ray' succeeded" in status.stdout
    logs = call([RAY, "job", "logs", *address, "by-ray"], project, head)
    assert "version" in logs.stdout
    assert list((project / "storage/models/submitted").glob("*/model.safetensors"))


def test_submissions_of_one_job_at_once_make_one_run(head: dict[str, str], project: Path) -> None:
    for package in PACKAGES:
        shutil.rmtree(project / package)
    values = yaml.safe_load((project / "job.yaml").read_text(encoding="utf-8"))
    values["train"]["epochs"] = "${EPOCHS}"
    (project / "job.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    (project / ".env").write_text("EPOCHS=1", encoding="utf-8")  # it is not sent
    (project / "my job.yaml").write_text("extends: job.yaml", encoding="utf-8")  # nor split
    command = [sys.executable, "-m", "orchestrator", "submit", "my job.yaml", "--json"]
    command += ["--address", head["DASHBOARD"]]
    with ThreadPoolExecutor(SUBMISSIONS) as pool:
        calls = [pool.submit(call, command, project, head) for _ in range(SUBMISSIONS)]
        done = [made.result() for made in calls]
    assert [made.returncode for made in done] == [0] * SUBMISSIONS, done
    assert len({made.stdout for made in done}) == 1
    assert '"SUCCEEDED"' in done[0].stdout
    assert len(runs.every(open_storage(project / "storage"))) == 1
