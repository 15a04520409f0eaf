"""A process that forks a child for each operation asked of it, stopped before it begins."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from jobs.errors import WinnowError
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef
from orchestrator.records import aliases, journal, registry
from tests.builders import job

DONE, REFUSED = 0, 3
"""Exit codes: it worked; it ended in a sentence."""


def checkpoint(folder: Path, text: str) -> CheckpointRef:
    """A small one."""
    model = folder / manifest.MODEL_DIR
    model.mkdir(parents=True)
    (model / "config.json").write_text(f'{{"is": "{text}"}}', encoding="utf-8")
    (model / "model.safetensors").write_text(text * 1000, encoding="utf-8")
    reference = CheckpointRef(str(folder), 1, {"accuracy": 0.5})
    manifest.write(folder, asdict(reference))
    return reference


def publish(folder: Path) -> None:
    """The checkpoint `new` as a version."""
    reference = CheckpointRef(str(folder / "new"), 1, {"accuracy": 0.5})
    storage = open_storage(folder / "storage")
    registry.publish(job(name="m"), reference, ("a", "b"), run_id="new", storage=storage)


def append(folder: Path) -> None:
    """A line to a journal."""
    journal.append(open_storage(folder / "storage").objects, "runs/r/journal.jsonl", b'"new"')


def move(folder: Path) -> None:
    """An alias to another version."""
    objects = open_storage(folder / "storage").objects
    aliases.move(objects, "m", "deployed", lambda _: "new", operation="new")


OPERATIONS: dict[str, Callable[[Path], None]] = {"publish": publish, "append": append, "move": move}


def main() -> None:
    """Read `operation folder` by the line; write the number of a stopped child for each."""
    for line in sys.stdin:
        name, folder = line.split()
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGSTOP)
            try:
                OPERATIONS[name](Path(folder))
            except WinnowError as error:
                os.write(2, f"{error}\n".encode())
                os._exit(REFUSED)
            except BaseException as error:  # noqa: BLE001 - told, and the child ends
                os.write(2, f"bug: {type(error).__name__}: {error}\n".encode())
                os._exit(1)
            os._exit(DONE)
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)  # noqa: T201 - the answer
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201


def warm_up(folder: Path) -> None:
    """Import all that the operations import."""
    checkpoint(folder / "new", "new")
    for act in OPERATIONS.values():
        act(folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    warm_up(Path(sys.argv[1]))
    main()
