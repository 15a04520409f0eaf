"""The wheel, installed far from the sources, in a working directory with files named as ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from raywinnow import version
from raywinnow.paths import PACKAGES
from tests.builders import any_of

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
IGNORED = shutil.ignore_patterns("__pycache__")
SHADOWS = ("serve.py", "cluster.py", "orchestrator.py", "jobs/__init__.py", "datasets.py")
"""Names of our packages, and one of a library."""
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of a copy of the sources, and the wheel that is made of the sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    for name in (*BESIDE, "constraints.txt"):
        shutil.copy(ROOT / name, source)
    code = "from setuptools import build_meta; build_meta.build_sdist('..')"
    run([sys.executable, "-c", code], source)
    (sdist,) = folder.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run([sys.executable, "-m", "pip", "wheel", *options, str(sdist)], folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """An environment with the wheel; other packages are those of this one, without the checkout."""
    place = built / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], built)
    python = str(place / "bin/python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", code], built).stdout.strip())
    # its own .pth files, such as that of an editable install, are not read there
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", str(wheel)]
    run(pip, built)
    return place


@pytest.fixture
def winnow(installed: Path, tmp_path: Path, reviews: Path, tiny_model: str) -> Iterator[Call]:
    """Runs the command of the wheel in a folder with a job, its rows and files named as ours."""
    folder = tmp_path / "work"
    (folder / "jobs").mkdir(parents=True)
    for name in SHADOWS:
        (folder / name).write_text(f"raise RuntimeError({name!r})\n", encoding="utf-8")
    for name in ("train.csv", "eval.csv"):
        shutil.copy(reviews / name, folder)
    job = {
        "version": 1,
        "name": "away",
        "model": {"base": tiny_model},
        "data": {
            "train": {"path": "train.csv"},
            "eval": {"path": "eval.csv"},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1, "micro_batch_size": 32},
        "resources": {"any_of": any_of("cpu:1")},
        "serve": {"route": "/away", "engine": "torch-fp32"},
        "storage": "./storage",
    }
    (folder / "away.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PYTHON"))}
    variables = {**kept, "WINNOW_HOME": str(tmp_path / "home")}

    def call(*words: str, **further: str) -> subprocess.CompletedProcess[str]:
        command = [str(installed / "bin/winnow"), *words]
        return subprocess.run(
            command,
            cwd=folder,
            env={**variables, **further},
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )

    try:
        yield call
    finally:
        call("down")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that has to work, in a folder, without this process's import path."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def files() -> set[str]:
    """Every file of our packages, by its path in the checkout."""
    found = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    return {str(p.relative_to(ROOT)) for p in found if "__pycache__" not in p.parts}


def test_wheel_and_sdist_hold_every_file_of_the_packages(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name for name in held if ".dist-info/" not in name} == files()
    assert f"raywinnow-{version()}.dist-info/licenses/LICENSE" in held
    with tarfile.open(sdist) as archive:
        sent = {name.partition("/")[2] for name in archive.getnames()}
    assert {*files(), *BESIDE, "constraints.txt", "examples/quickstart.yaml"} <= sent
    assert not {name for name in sent if name.startswith(("tests", "docs", "infra"))}


def test_the_wheel_runs_a_job_beside_files_named_as_its_packages(
    winnow: Call, tmp_path: Path
) -> None:
    """Only this runs every process of a job, Ray's workers too, without the checkout."""
    assert winnow("--version").stdout == f"winnow {version()}\n"
    for way in ({}, {"PYTHONPATH": ":"}, {"PYTHONPATH": str(tmp_path / "work")}):
        done = winnow("validate", "away.yaml", **way)
        assert done.stdout == "away.yaml is a valid job: away\n", done.stderr
    assert winnow("init").returncode == 0
    assert (tmp_path / "work/job.yaml").is_file()
    done = winnow("run", "away.yaml")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    planned = winnow("plan", "away.yaml")
    assert "cpu:1" in planned.stdout, planned.stderr
    (report,) = tmp_path.glob("work/storage/runs/away-*/report.html")
    assert "</html>" in report.read_text(encoding="utf-8")
    address = next(line for line in done.stdout.splitlines() if line.startswith("endpoint"))
    url = address.split()[1].removesuffix("predict")
    with urllib.request.urlopen(url, timeout=30) as page:
        assert "<!doctype html>" in page.read().decode()


def test_files_that_workers_would_import_are_named_with_what_to_do(
    winnow: Call, tmp_path: Path
) -> None:
    sent = '{"runtime_env": {"working_dir": "gcs://package.zip"}}'
    folder = tmp_path / "work"
    job = winnow("validate", "away.yaml", RAY_JOB_CONFIG_JSON_ENV_VAR=sent, PYTHONPATH=str(folder))
    assert job.returncode == 1
    for name in SHADOWS[:4]:
        assert f"error: {folder / name} has the name of Winnow's package " in job.stderr
    assert "rename it, or send the job with `winnow submit`" in job.stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other/serve.py").touch()
    done = winnow("validate", "away.yaml", PYTHONPATH=str(tmp_path / "other"))
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path}/other/serve.py has the name of Winnow's package serve and comes before"
        " it on the import path; rename it, or take its folder out of PYTHONPATH\n"
    )
