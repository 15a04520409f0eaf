"""What the documentation tells people to run, runs; what cannot run here is at least spelled right.

A block of `bash` or `python` is run, in the order of its page, in a folder that looks like a fresh
clone; a block with a title is a file that is written first. All pages share one local cluster. A
block of `sh` needs what a test has not (another machine, a cloud): `test_names.py` checks its
commands.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import alone
from tests.alone import needs_namespaces
from tests.docs.pages import GENERATED, PAGES, ROOT, blocks, name_of

CLONE = ("examples", "infra")
"""What commands on the pages name."""
PAGES_S = 1200
"""How long all of them may take."""


def script(page: Path) -> str:
    """A page as one shell script, empty where nothing of it can be run here."""
    lines = []
    for language, title, text in blocks(page):
        if title:
            lines.append(f"cat > {shlex.quote(title)} <<'END OF FILE'\n{text}END OF FILE")
        elif language == "bash":
            lines.append(text)
        elif language == "python":
            lines.append(f"python - <<'END OF SCRIPT'\n{text}END OF SCRIPT")
    can_run = any(language in ("bash", "python") for language, title, _ in blocks(page))
    return "\n".join(lines) if can_run else ""


def needs_cluster(page: Path) -> bool:
    """Whether a page starts the local cluster, which the first command that needs one does."""
    return any(words in script(page) for words in ("winnow up", "winnow train", "winnow run"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a fresh clone has, with the data that come from PyPI: pages have no network."""
    folder = tmp_path / "clone"
    for name in CLONE:
        shutil.copytree(ROOT / name, folder / name)
    shutil.rmtree(folder / "examples/data", ignore_errors=True)
    words = [sys.executable, str(folder / "examples/prepare_reviews.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the examples' data cannot be fetched: {done.stderr}")
    return folder


@pytest.mark.e2e
@needs_namespaces
def test_what_pages_tell_to_run_without_a_cluster_runs(clone: Path, tmp_path: Path) -> None:
    check_pages([page for page in PAGES if not needs_cluster(page)], clone, tmp_path)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(PAGES_S + 60)
@needs_namespaces
def test_what_pages_tell_to_run_on_a_cluster_runs(clone: Path, tmp_path: Path) -> None:
    """Catches a guide whose commands fail on a real cluster: three of them train, one deploys."""
    check_pages([page for page in PAGES if needs_cluster(page)], clone, tmp_path)


def check_pages(pages: list[Path], clone: Path, folder: Path) -> None:
    """Run each page in its own clone, on a machine where no cluster is up at first.

    The page that starts and stops a cluster comes first, the others share the one that follows.
    """
    parts = []
    for page in sorted(filter(script, pages), key=lambda page: "winnow down" not in script(page)):
        place = shutil.copytree(clone, folder / page.stem)
        name = f"echo 'page {name_of(page)}' >&2"
        parts.append(f"{name}\n(\nset -e\ncd {shlex.quote(str(place))}\n{script(page)}\n)")
    ours = ("RAY_", "AWS_", "WINNOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment |= {"WINNOW_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    environment["HOME"] = str(folder)  # where Ray's token is made
    done = alone.run("\n".join(parts), folder=folder, environment=environment, timeout_s=PAGES_S)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert len(parts) > 3
    assert len(re.findall("^page ", done.stderr, re.MULTILINE)) == len(parts)


def test_the_notebook_has_the_cells_of_its_guide() -> None:
    """Which the test above runs."""
    guide = ROOT / "docs/how-to/python.md"
    (code,) = [text for language, _, text in blocks(guide) if language == "python"]
    notebook = json.loads((ROOT / "examples/sweep.ipynb").read_text(encoding="utf-8"))
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    assert kinds.count("code") > 2 < kinds.count("markdown")
    own = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in own)
    assert "\n".join("".join(cell["source"]) for cell in own).split() == code.split()


def test_pages_show_only_languages_that_are_checked_or_plain() -> None:
    """A new kind of block would pass unseen."""
    known = {"bash", "sh", "python", "yaml", "json", "text", "toml", "promql"}
    found = {language for page in PAGES for language, _, _ in blocks(page)}
    assert found <= known


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Winnow" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_reference_of_commands_is_up_to_date() -> None:
    words = [sys.executable, "-m", "typer", "orchestrator.cli", "utils", "docs", "--name", "winnow"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    committed = GENERATED.read_text(encoding="utf-8")
    assert committed == done.stdout, "run `make schema`"
