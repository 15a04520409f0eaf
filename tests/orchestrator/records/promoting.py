"""A process that promotes and rolls back, and writes down what it asked for and got."""

import functools
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.records import aliases

MODEL, ALIAS = "m", "deployed"
LONGEST_PAUSE_S = 0.1
"""Between two operations, so that a kill may fall anywhere."""


def main(place: str, log: Path, number: int, count: int) -> None:
    """Go on after the last operation in the log, which a kill may have left without its answer."""
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    begun = {row["operation"] for row in done}
    objects, draw = open_storage(place).objects, random.Random(f"{number}/{len(begun)}")
    with log.open("a", encoding="utf-8") as handle:
        for index in range(len(begun), count):
            is_rollback, operation = draw.random() < 0.4, f"{number}-{index}"
            row = {"operation": operation, "is_rollback": is_rollback, "begin": time.monotonic()}
            handle.write(json.dumps(row) + "\n")
            handle.flush()
            time.sleep(draw.uniform(0, LONGEST_PAUSE_S))
            choose = functools.partial(roll_back if is_rollback else promote, operation)
            made = aliases.move(objects, MODEL, ALIAS, choose, operation=operation)
            row |= {"number": made.number, "version": made.version, "end": time.monotonic()}
            handle.write(json.dumps(row) + "\n")
            handle.flush()


def promote(operation: str, _: Sequence[str]) -> str:
    """To a version that nobody else names."""
    return f"v{operation}"


def roll_back(operation: str, versions: Sequence[str]) -> str:
    """To the version before, or to one that nobody else names: no move where it is already."""
    has_older = len(set(versions)) > 1
    return aliases.previous(MODEL, versions) if has_older else promote(operation, versions)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
