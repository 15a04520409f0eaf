"""A sweep of which some candidates run out of memory for real, under a limit of the system.

    python benchmarks/memory_sweep.py JOB.yaml --gib 6 [--out FILE]

Starts a cluster whose processes may take no more than `--gib` of address space each, sweeps the
job, and checks: every candidate has one result, those that ran out of memory are recorded and not
tried again, and the winner's global batch is the one that was asked for. Prints and writes it.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.storage.storage import open_storage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cluster import session  # noqa: E402 - the script runs from a clone, installed or not
from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.loading import load_job  # noqa: E402
from orchestrator.notices import Notice, Progress, Remark  # noqa: E402
from orchestrator.records import journal, runs  # noqa: E402


def main() -> int:
    """Sweep, check, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    quiet_libraries()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path[1:]])
    limit = int(arguments.gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # every process of the cluster inherits
    with tempfile.TemporaryDirectory() as folder, session.connect() as cluster:
        result = sweep_job(arguments.job, Path(folder), cluster.serve_port)
    result["gib"] = arguments.gib
    now = datetime.now(UTC)
    out = arguments.out or ROOT / "benchmarks/results" / f"memory-{now:%Y%m%d-%H%M%S}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    is_good = not result["probed_twice"] and not result["without_result"] and result["ran_out"]
    return 0 if is_good and result["global_batch"] == result["asked_global_batch"] else 1


def sweep_job(job: Path, folder: Path, serve_port: int) -> dict[str, Any]:
    """What a sweep under the limit came to."""
    from orchestrator import pipeline, sweeping
    from orchestrator.context import Context

    spec = load_job(job, ["sweep.probe.confirm=0"])
    run = runs.create(open_storage(folder), spec, datetime.now(UTC))
    context = Context(spec, run, open_storage(folder), tell, serve_port)
    plan = pipeline.plan_stage(context)
    found = sweeping.run_sweep(context, plan)
    measured = journal.read(run.storage.objects, f"runs/{run.id}/measurements.jsonl").values
    results = [json.loads(value)["candidate"] for value in measured]
    candidate = found.winner.candidate
    workers = candidate.placement.workers
    return {
        "candidates": len(plan.candidates),
        "ran_out": [m.candidate for m in found.measurements if m.failure],
        "failures": sorted({m.failure for m in found.measurements if m.failure}),
        "probed_twice": [name for name, count in Counter(results).items() if count > 1],
        "without_result": sorted({c.id for c in plan.candidates} - set(results)),
        "winner": candidate.id,
        "global_batch": candidate.micro_batch_size * candidate.accumulation * workers,
        "asked_global_batch": spec.train.global_batch_size,
        "sweep_s": found.duration_s,
    }


def tell(notice: Notice) -> None:
    """Progress on stderr."""
    match notice:
        case Progress("probe", _, _, text) | Remark(text):
            print(f"  {text}", file=sys.stderr, flush=True)
        case _:
            pass


if __name__ == "__main__":
    sys.exit(main())
