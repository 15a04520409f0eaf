"""A process that makes some runs, each with its journal, its version and a move of the alias."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.records import registry, runs
from tests.builders import job
from tests.orchestrator.records import acting

NOTES = 10


def main(place: str, folder: Path, first: int, count: int) -> None:
    """Runs of jobs with the seeds from `first` on, all with one model name."""
    storage = open_storage(place)
    for seed in range(first, first + count):
        spec = job(seed=seed)
        run = runs.create(storage, spec, datetime.now(UTC))
        for number in range(NOTES):
            run.note("step", number=str(number))
        reference = acting.checkpoint(folder / str(seed), f"weights {seed}")
        version = registry.publish(spec, reference, ("a", "b"), run_id=run.id, storage=storage)
        registry.note_deployed(storage, version)
        run.write("model", version)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
