"""What the test suite catches: forty faults, planted one by one.

    python benchmarks/planted_faults.py [--suite fast|test|all] [--only NAME] [--revision REV]

Each fault of `benchmarks/faults_to_plant.py` is an edit of one file that changes what the product
does, and that neither imports nor types show. The script writes it into a work tree of its own,
runs the tests that are named for it as the suite would select them, and counts it as caught when
one of them fails. Before, the same tests have to pass without a fault: a test that fails anyway
catches nothing. `--revision` measures the tests and the product of another commit, with the faults
of this one; `--out` writes the result as JSON.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.faults_to_plant import FAULTS, Fault  # noqa: E402 - runs from a clone, installed or not

MARKS = {
    "fast": "not slow and not ray and not e2e and not browser and not workers",
    "test": "not slow",
    "all": "",
}
"""What each of `make test-fast`, `make test` and `make test-all` selects."""
PASSED, FAILED, NONE_SELECTED = 0, 1, 5
"""Exit codes of pytest: all tests passed, some failed, none was selected by the marks."""
LIMIT_S = 1800
"""Longest run of the tests of one fault."""


def main() -> int:
    """Plant, run, count; exits with 1 where a fault is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=MARKS, default="all")
    parser.add_argument("--only", action="append", help="names of faults, or what they begin with")
    parser.add_argument("--revision", default="HEAD")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    wanted = tuple(arguments.only or [""])
    faults = [fault for fault in FAULTS if fault.name.startswith(wanted)]
    with work_tree(arguments.revision) as folder:
        tests = sorted({test for fault in faults for test in fault.tests})
        code, words = run(folder, tests, MARKS[arguments.suite], stop=False)
        if code not in (PASSED, NONE_SELECTED):
            print(f"{words}\nthese tests fail without a fault")
            return 1
        found = {fault.name: plant(folder, fault, MARKS[arguments.suite]) for fault in faults}
    caught = sum(found.values())
    print(f"{arguments.suite}: {caught} of {len(found)} faults are caught")
    if arguments.out:
        result = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "suite": arguments.suite,
            "revision": git("rev-parse", "--short", arguments.revision),
            "caught": caught,
            "faults": found,
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if caught == len(found) else 1


def plant(folder: Path, fault: Fault, marks: str) -> bool:
    """Whether the tests of a fault fail with it in the work tree, which is left as it was."""
    path, begin = folder / fault.path, time.monotonic()
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.name}: {fault.path} has its text {text.count(fault.old)} times")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        code, words = run(folder, fault.tests, marks, stop=True)
    finally:
        path.write_text(text, encoding="utf-8")
    if code not in (PASSED, FAILED, NONE_SELECTED):
        raise SystemExit(f"{words}\n{fault.name}: pytest ends with {code}")
    verdict = {PASSED: "NOT CAUGHT", FAILED: "caught", NONE_SELECTED: "not selected"}[code]
    print(f"{fault.name}: {verdict} after {time.monotonic() - begin:.0f} s", flush=True)
    return code == FAILED


def run(folder: Path, tests: Sequence[str], marks: str, *, stop: bool) -> tuple[int, str]:
    """Exit code and output of pytest in a work tree, whose packages come before installed ones."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0"]
    command += ["-m", marks] if marks else []
    command += ["-x"] if stop else []
    done = subprocess.run(
        [*command, *dict.fromkeys(known(folder, test) for test in tests)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S * len(tests),
        check=False,
    )
    return done.returncode, done.stdout[-6000:]


def known(folder: Path, test: str) -> str:
    """The test, or its whole file in a commit that does not have it yet."""
    name, _, function = test.partition("::")
    text = (folder / name).read_text(encoding="utf-8")
    return test if f"def {function}(" in text else name


@contextlib.contextmanager
def work_tree(revision: str) -> Iterator[Path]:
    """The files of a commit in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name) / "tree"
        git("worktree", "add", "--detach", str(folder), revision)
        try:
            yield folder
        finally:
            git("worktree", "remove", "--force", str(folder))


def git(*words: str) -> str:
    """Output of a command of git in this clone."""
    command = ["git", "-C", str(ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
