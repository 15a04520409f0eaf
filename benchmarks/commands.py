"""Time the commands that start nothing, beside what the interpreter and the libraries take alone.

    python benchmarks/commands.py [--rounds 9] [--beside CHECKOUT] [--out FILE]

All run by turns, each in a process of its own; the job is the quickstart's, whose rows
`examples/prepare_reviews.py` writes. `--beside` times the commands of another checkout by turns
with these, such as those before a change. Prints and writes median and fastest wall seconds.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples/quickstart.yaml"
FLOORS: Mapping[str, str] = {
    "interpreter": "pass",
    "libraries": "import typer, rich, pydantic, yaml",
    "libraries as a command uses them": (
        "import typer._adapters, rich.console, yaml; from pydantic import BaseModel, TypeAdapter"
    ),
}
COMMANDS: Mapping[str, Sequence[str]] = {
    "--help": ("--help",),
    "init": ("init", "new.yaml"),
    "validate": ("validate", str(JOB)),
    "render": ("render", str(JOB)),
    "schema": ("schema",),
}


def main() -> int:
    """Measure and record; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside", type=Path, help="another checkout of Winnow")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/commands.json")
    arguments = parser.parse_args()
    checkouts = {"here": ROOT} | ({"beside": arguments.beside} if arguments.beside else {})
    runs = {name: ([sys.executable, "-c", code], ROOT) for name, code in FLOORS.items()} | {
        f"{name}, {checkout}": ([sys.executable, "-P", "-m", "raywinnow", *words], root.resolve())
        for name, words in COMMANDS.items()
        for checkout, root in checkouts.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(arguments.rounds + 1):
        for name, (command, root) in runs.items():
            took_s = timed(command, root)
            if turn:  # the first one writes bytecode
                times[name].append(took_s)
    result = {
        name: {"median_s": round(statistics.median(took), 3), "fastest_s": round(min(took), 3)}
        for name, took in times.items()
    }
    print(json.dumps(result, indent=2))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}
    arguments.out.write_text(json.dumps(head | {"seconds": result}, indent=2) + "\n")
    return 0


def timed(command: Sequence[str], root: Path) -> float:
    """Wall seconds of a command with the packages of a checkout; it must succeed."""
    unset = "PYTHONDONTWRITEBYTECODE"  # a user's modules are compiled
    environment = {name: value for name, value in os.environ.items() if name != unset}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"PYTHONPATH": str(root), "WINNOW_HOME": folder}
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
