"""Kill a sweep's driver at random moments, resume it each time, and compare with one left alone.

    python benchmarks/kill_sweep.py JOB.yaml [--kills 10] [--seed 1] [--out FILE]

The job's quality fields should be lists, so that every trial is known beforehand. Prints and writes
the moments, whether the winner is the same, and how often each probe and trial was recorded.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run once in peace, then once under fire; the exit code tells whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calm = Path(folder) / "calm"
        begin = time.monotonic()
        if command(arguments.job, calm, resume=False).wait() != 0:
            raise SystemExit("the sweep fails even when it is left alone")
        whole_s = time.monotonic() - begin
        print(f"left alone: {whole_s:.0f} s", file=sys.stderr, flush=True)
        hit = Path(folder) / "hit"
        moments = fire(arguments.job, hit, whole_s, arguments.kills, random.Random(arguments.seed))
        result = compare(calm, hit) | {"whole_s": whole_s, "kills": moments}
    now = datetime.now(UTC)
    out = arguments.out or ROOT / "benchmarks/results" / f"kill-{now:%Y%m%d-%H%M%S}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["same_winner"] and not result["repeated_trials"] else 1


def command(job: Path, storage: Path, *, resume: bool) -> "subprocess.Popen[bytes]":
    """A sweep of the job."""
    options = ["--set", f"storage={storage}", *(["--resume"] if resume else [])]
    words = [sys.executable, "-m", "orchestrator", "sweep", str(job), *options]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fire(
    job: Path, storage: Path, whole_s: float, kills: int, draw: random.Random
) -> list[dict[str, Any]]:
    """SIGKILL the driver at moments spread over what a calm sweep takes; then let it end."""
    moments: list[dict[str, Any]] = []
    while len(moments) < kills:
        driver = command(job, storage, resume=any(storage.glob("runs/*")))
        # starting takes a third of a calm sweep; later moments hit what is recorded by then
        moment_s = draw.uniform(0.2 * whole_s, whole_s)
        try:
            if driver.wait(timeout=moment_s) == 0:
                break
        except subprocess.TimeoutExpired:
            driver.send_signal(signal.SIGKILL)
            driver.wait()
        moments.append({"after_s": round(moment_s, 1), **recorded(storage)})
        print(moments[-1], file=sys.stderr, flush=True)
    while not any(storage.glob("runs/*/winner.json")):
        if command(job, storage, resume=True).wait() != 0:
            raise SystemExit("the sweep does not end when it is resumed")
    return moments


def recorded(storage: Path) -> dict[str, int]:
    """How many probes and trials are recorded so far."""
    return {name: len(lines(storage, name)) for name in ("measurements", "trials")}


def lines(storage: Path, name: str) -> list[dict[str, Any]]:
    """What was recorded one by one; a torn last line does not count."""
    found = []
    for path in storage.glob(f"runs/*/{name}.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
    return found


def compare(calm: Path, hit: Path) -> dict[str, Any]:
    """Winner, and how often each trial ran."""
    winners = [json.loads(next(f.glob("runs/*/winner.json")).read_bytes()) for f in (calm, hit)]
    chosen = [(w["candidate"]["placement"]["sku"], w["params"]) for w in winners]
    names = [json.dumps(trial["params"], sort_keys=True) for trial in lines(hit, "trials")]
    expected = {json.dumps(trial["params"], sort_keys=True) for trial in lines(calm, "trials")}
    return {
        "same_winner": chosen[0] == chosen[1],
        "winner": chosen,
        "candidates": [w["candidate"]["micro_batch_size"] for w in winners],
        "repeated_trials": {name: n for name, n in Counter(names).items() if n > 1},
        "missing_trials": sorted(expected - set(names)),
        "runs": len(list(hit.glob("runs/*"))),
    }


if __name__ == "__main__":
    sys.exit(main())
