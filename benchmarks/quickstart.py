"""Time the quickstart as a new user meets it: fresh clone, fresh environment, no state of ours.

    python benchmarks/quickstart.py [--keep DIR]

Prints and writes to benchmarks/results/ the seconds of `make install` and `make quickstart`, the
receipt, and the accuracy of the endpoint over the whole evaluation file.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure and record; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="clone into this folder and leave it there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        clone = arguments.keep or Path(temporary) / "winnow"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        home = Path(temporary) / "home"
        environment = {**os.environ, "WINNOW_HOME": str(home)}
        install_s = timed(["make", "install"], clone, environment)
        try:
            quickstart_s = timed(["make", "quickstart"], clone, environment)
            result = {"install_s": install_s, "quickstart_s": quickstart_s, **examine(clone)}
        finally:
            subprocess.run([".venv/bin/winnow", "down"], cwd=clone, env=environment, check=False)
    record(result)
    print(json.dumps(result, indent=2))
    return 0 if result["endpoint_accuracy"] == result["training_accuracy"] else 1


def timed(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Wall seconds of a command that must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return round(time.perf_counter() - begin, 1)


def examine(clone: Path) -> dict[str, object]:
    """The receipt of the run and the endpoint's accuracy over the evaluation file."""
    run = max((clone / ".winnow/runs").iterdir())
    receipt = json.loads((run / "receipt.json").read_text(encoding="utf-8"))
    url = json.loads((run / "endpoint.json").read_text(encoding="utf-8"))["url"]
    with (clone / "examples/data/eval.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    request = urllib.request.Request(
        f"{url}/predict",
        json.dumps({"inputs": [row["text"] for row in rows]}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        labels = [found["label"] for found in json.load(answer)]
    right = sum(label == row["label"] for label, row in zip(labels, rows, strict=True))
    return {
        "eval_rows": len(rows),
        "endpoint_accuracy": right / len(rows),
        "training_accuracy": receipt["metrics"]["accuracy"],
        "winner": receipt["winner"],
        "predicted_time_s": receipt["predicted_time_s"],
        "actual_time_s": receipt["actual_time_s"],
        "sweep_time_s": receipt["sweep_time_s"],
    }


def record(result: dict[str, object]) -> None:
    """Keep the result with the machine it was measured on."""
    now = datetime.now(UTC)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    path = ROOT / f"benchmarks/results/quickstart-{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"date": f"{now:%Y-%m-%d}", "machine": machine, **result}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
