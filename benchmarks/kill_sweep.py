"""Kill sweeps' drivers at random moments, resume each, and compare with one left alone.

    python benchmarks/kill_sweep.py JOB.yaml [--kills 10] [--seed 1] [--out FILE]

The job's quality fields should be lists, so that every trial is known beforehand. Prints and writes
for each kill: the moment, what was recorded by then, whether the winner is the same, and which
probes and trials ran twice. The job's sweep.probe.confirm should be 0: what is timed twice on
purpose would count.
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
sys.path.insert(0, str(ROOT))

from jobs.storage.local import LocalObjects  # noqa: E402 - runs from a clone, installed or not
from orchestrator.records import journal  # noqa: E402 - runs from a clone, installed or not


def main() -> int:
    """Run once in peace, then once under fire; the exit code tells whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        calm = Path(folder) / "calm"
        begin = time.monotonic()
        if command(arguments.job, calm, resume=False).wait() != 0:
            raise SystemExit("the sweep fails even when it is left alone")
        whole_s = time.monotonic() - begin
        print(f"left alone: {whole_s:.0f} s", file=sys.stderr, flush=True)
        rounds = []
        for number in range(arguments.kills):
            hit = Path(folder) / f"hit-{number}"
            moment = fire(arguments.job, hit, draw.uniform(0.2, 0.95) * whole_s)
            rounds.append(moment | compare(calm, hit))
            print(rounds[-1], file=sys.stderr, flush=True)
    result = {"whole_s": whole_s, "rounds": rounds}
    now = datetime.now(UTC)
    out = arguments.out or ROOT / "benchmarks/results" / f"kill-{now:%Y%m%d-%H%M%S}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    good = (r["same_winner"] and not r["repeated"] and not r["missing_trials"] for r in rounds)
    return 0 if all(good) else 1


def command(job: Path, storage: Path, *, resume: bool) -> "subprocess.Popen[bytes]":
    """A sweep of the job."""
    options = ["--set", f"storage={storage}", *(["--resume"] if resume else [])]
    words = [sys.executable, "-m", "orchestrator", "sweep", str(job), *options]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fire(job: Path, storage: Path, moment_s: float) -> dict[str, Any]:
    """SIGKILL the driver at a moment, unless it is done by then; resume it to its end."""
    driver = command(job, storage, resume=False)
    try:
        driver.wait(timeout=moment_s)
    except subprocess.TimeoutExpired:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    before = recorded(storage)
    if driver.returncode != 0 and command(job, storage, resume=True).wait() != 0:
        raise SystemExit("the sweep does not end when it is resumed")
    return {"killed": driver.returncode != 0, "after_s": round(moment_s, 1), "recorded": before}


def recorded(storage: Path) -> dict[str, int]:
    """How many probes and trials are recorded so far."""
    return {name: len(lines(storage, name)) for name in ("measurements", "trials")}


def lines(storage: Path, name: str) -> list[dict[str, Any]]:
    """What was recorded one by one; a torn last line does not count."""
    found = []
    for path in storage.glob(f"runs/*/{name}.jsonl"):
        lines = journal.read(LocalObjects(path.parent), path.name)
        found += [json.loads(value) for value in lines.values]
    return found


def compare(calm: Path, hit: Path) -> dict[str, Any]:
    """Winner, and how often each trial ran."""
    winners = [json.loads(next(f.glob("runs/*/winner.json")).read_bytes()) for f in (calm, hit)]
    chosen = [(w["candidate"]["placement"]["sku"], w["params"]) for w in winners]
    names = [json.dumps(trial["params"], sort_keys=True) for trial in lines(hit, "trials")]
    probes = [probe["candidate"] for probe in lines(hit, "measurements")]
    expected = {json.dumps(trial["params"], sort_keys=True) for trial in lines(calm, "trials")}
    return {
        "same_winner": chosen[0] == chosen[1],
        "winner": chosen,
        "candidates": [w["candidate"]["micro_batch_size"] for w in winners],
        "repeated": {name: n for name, n in Counter(names + probes).items() if n > 1},
        "missing_trials": sorted(expected - set(names)),
        "runs": len(list(hit.glob("runs/*"))),
    }


if __name__ == "__main__":
    sys.exit(main())
