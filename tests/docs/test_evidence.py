"""Each measured figure leads to a row of benchmarks/README.md, and each row to what it names."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

EVIDENCE = ROOT / "benchmarks/README.md"
HISTORY = ROOT / "benchmarks/HISTORY.md"
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
LINK = re.compile(r"benchmarks/(README|HISTORY)\.md#([\w-]+)")
"""A link from anywhere; pages in docs/ name the file as code, as their site ends at docs/."""
RESULT = re.compile(r"\]\((results/[^)]+)\)")
FILE = re.compile(r"(?<![\w./-])((?:benchmarks|infra|tests|examples)/[\w/.-]+\.(?:py|nft|yaml))")
TARGET = re.compile(r"\bmake ([a-z-]+)")
CELLS = 6
"""Claim, figure, machine, command, date and result."""
WITHOUT_FILE = ("test", "printed", "none", "on the receipt", "by `psutil`, no file")


class Row(NamedTuple):
    """A line of a table, with the name that its claim is linked by; empty without one."""

    anchor: str
    cells: list[str]


def rows(text: str) -> list[Row]:
    """Rows of all tables, without their heads."""
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith(("| claim |", "| --- |")):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            anchor = ANCHOR.match(cells[0])
            found.append(Row(anchor[1] if anchor else "", cells))
    return found


def faults(text: str, folder: Path = EVIDENCE.parent) -> list[str]:
    """What is wrong with the rows of a page: their form, and files and targets they name."""
    found = []
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for anchor, cells in rows(text):
        if not anchor:
            found.append(f"no anchor: {cells[0]}")
        if len(cells) != CELLS:
            found.append(f"{anchor}: {len(cells)} cells instead of {CELLS}")
            continue
        *_, command, date, result = cells
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            found.append(f"{anchor}: no date: {date}")
        named = RESULT.findall(result)
        if not named and result not in WITHOUT_FILE:
            found.append(f"{anchor}: no result: {result}")
        missing = [name for name in named if not (folder / name).is_file()]
        missing += [name for name in FILE.findall(command) if not (ROOT / name).is_file()]
        missing += [name for name in TARGET.findall(command) if name not in targets]
        found += [f"{anchor}: there is no {name}" for name in missing]
    names = ANCHOR.findall(text)
    return found + [
        f"two rows are {name}" for name in sorted({n for n in names if names.count(n) > 1})
    ]


def broken_links(text: str) -> list[str]:
    """Links to a row or a part of the history that is not there."""
    anchors = {
        page.stem: set(ANCHOR.findall(page.read_text(encoding="utf-8")))
        for page in (EVIDENCE, HISTORY)
    }
    return [f"{page}.md#{name}" for page, name in LINK.findall(text) if name not in anchors[page]]


def committed(*patterns: str) -> list[Path]:
    """Files of the repository; what a benchmark wrote a moment ago is none yet."""
    if not (ROOT / ".git").exists():
        return sorted({path for pattern in patterns for path in ROOT.glob(f"**/{pattern}")})
    words = ["git", "ls-files", "--cached", "--", *patterns]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_rows_name_files_scripts_and_targets_that_are_there() -> None:
    text = EVIDENCE.read_text(encoding="utf-8")
    assert len(rows(text)) > 50
    assert faults(text) == []


def test_links_to_rows_lead_somewhere() -> None:
    pages = committed("*.md", "*.py")
    linked = [name for page in pages for name in LINK.findall(page.read_text(encoding="utf-8"))]
    assert len(linked) > 10
    found = {
        str(page.relative_to(ROOT)): broken
        for page in pages
        if page != Path(__file__) and (broken := broken_links(page.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_every_result_is_named_by_a_row() -> None:
    named = {
        EVIDENCE.parent / name
        for row in rows(EVIDENCE.read_text(encoding="utf-8"))
        for name in RESULT.findall(row.cells[-1])
    }
    kept = set(committed("benchmarks/results/*"))
    assert len(kept) > 20
    assert kept - named == set()


ROW = (
    '| <a id="x"></a>a claim | 2 s | 1 H200 | `python benchmarks/train.py` | 2026-11-21 |'
    " [x](results/learning.json) |"
)


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ('<a id="x"></a>', "", "no anchor"),
        ("2026-11-21", "lately", "no date"),
        ("[x](results/learning.json)", "measured", "no result"),
        ("learning.json", "gone.json", "there is no results/gone.json"),
        ("benchmarks/train.py", "benchmarks/gone.py", "there is no benchmarks/gone.py"),
        ("python benchmarks/train.py", "make gone", "there is no gone"),
        (" | 1 H200", "", "5 cells"),
        ("a claim", 'a claim <a id="x"></a>', "two rows are x"),
    ],
)
def test_planted_mistakes_in_rows_are_found(right: str, wrong: str, fault: str) -> None:
    assert faults(ROW) == []
    assert fault in " ".join(faults(ROW.replace(right, wrong)))


def test_a_planted_link_without_an_anchor_is_found() -> None:
    text = "[fast](../benchmarks/README.md#train-bert-16), `benchmarks/README.md#no-such-row`"
    assert broken_links(text) == ["README.md#no-such-row"]
