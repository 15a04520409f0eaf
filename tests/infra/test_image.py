"""The image's recipe, by a linter and by what it promises."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra/image/Dockerfile"
LOCK = ROOT / "infra/image/requirements.lock"
EXTRAS = re.findall(r"--extra (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
"""What `make lock` adds for endpoints."""
LINTER = Path(sys.executable).with_name("hadolint")


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINTER, "-"], input=text, capture_output=True, text=True, check=False)


def test_the_linter_finds_nothing() -> None:
    done = lint(RECIPE.read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FROM ${BASE} AS build", "FROM ubuntu:latest AS build"),
        ("USER 1000", "USER root"),
        ("WORKDIR /src", "RUN cd /src"),
    ],
)
def test_the_linter_finds_a_planted_mistake(old: str, new: str) -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert old in text
    assert lint(text.replace(old, new)).returncode != 0


def test_the_last_stage_is_pinned_nobody_s_and_without_a_compiler() -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert all(stage.startswith("${BASE}") for stage in stages)
    last = stages[-1]
    assert re.search(r"^USER [1-9]\d*$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert 'ARG COMPILER=""' in last
    assert not re.search(r"\b(gcc|g\+\+|clang|build-essential|pip install)\b", last)


def test_the_image_installs_what_is_tested_by_its_hashes() -> None:
    assert {"cpu-engines", "grpc", "tracing"} <= set(EXTRAS)
    assert "pip install --require-hashes -r requirements.lock" in RECIPE.read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").strip())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)
    locked = dict(block.split(" ")[0].split("==") for block in blocks)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    tested = {name.lower().replace("_", "-"): version for name, version in pins}
    # what only Linux with a GPU or Python 3.12 needs is not there where the tests run
    shared = {name for name in locked if name in tested}
    assert {name: locked[name] for name in shared} == {name: tested[name] for name in shared}
    with (ROOT / "pyproject.toml").open("rb") as handle:
        project = tomllib.load(handle)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    names = {re.split(r"[\[<>=;]", line)[0].lower() for line in wanted}
    assert names <= locked.keys() & tested.keys()
