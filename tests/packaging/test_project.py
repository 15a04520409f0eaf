"""One version in every file that names it; workflows call what is there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import raywinnow

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]


def read(path: Path) -> dict[Any, Any]:
    """A YAML file."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def test_changelog_and_citation_name_the_version_of_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as handle:
        version = tomllib.load(handle)["project"]["version"]
    assert raywinnow.version() == version
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == version
    numbers = [tuple(map(int, heading.split("."))) for heading in headings]
    assert numbers == sorted(set(numbers), reverse=True)
    assert read(ROOT / "CITATION.cff")["version"] == version


def test_workflows_call_targets_of_the_makefile_and_read_the_repository_alone() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    called = set[str]()
    for path in WORKFLOWS:
        flow = read(path)
        assert flow["permissions"] == {"contents": "read"}
        for job in flow["jobs"].values():
            assert job["timeout-minutes"]
            lines = (step["run"] for step in job["steps"] if "run" in step)
            called |= {word for line in lines for word in re.findall(r"^make (\S+)", line)}
    assert {"check", "test", "site"} <= called <= set(targets)


def test_only_the_job_that_publishes_may_ask_for_a_token() -> None:
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "uses" in jobs["publish"]["steps"][-1]


def test_issue_forms_have_names_and_fields_of_their_own() -> None:
    assert len(FORMS) == 2
    for path in FORMS:
        form = read(path)
        assert form["name"]
        assert form["description"]
        fields = [each for each in form["body"] if each["type"] != "markdown"]
        identities = [each["id"] for each in fields]
        assert len(identities) == len(set(identities)) > 1
        assert all(each["attributes"]["label"] for each in fields)
