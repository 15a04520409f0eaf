"""Groups of real training processes, forked from one that has imported everything already."""

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.events import Event

STARTED = 180.0
"""Seconds within which a group must end, also beside other work."""

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["jobs.training.loop", "datasets", "torch._dynamo", "transformers.models.bert.modeling_bert"]
)


def start(
    config: TrainingConfig,
    workers: int,
    checkpoints: Path | None,
    log: Path,
    *,
    spare_mib: int | None = None,
    prepare: Callable[[], None] | None = None,
) -> Sequence[BaseProcess]:
    """Start a group of workers that train as under torchrun; rank 0 writes its events to `log`.

    With `spare_mib` a worker may take that much memory more than it has at its start. `prepare` is
    called in each of them first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = TRAINING_CONFIG.dump_json(config).decode()
    shared = workers, port, checkpoints, log, spare_mib, prepare
    group = [context.Process(target=_work, args=(text, rank, *shared)) for rank in range(workers)]
    for process in group:
        process.start()
    return group


def finish(group: Sequence[BaseProcess]) -> list[int]:
    """Wait for a group; returns exit codes."""
    for process in group:
        process.join(STARTED)
    codes = [process.exitcode for process in group]
    assert None not in codes, "a worker hangs"
    return [code or 0 for code in codes]


def kill(group: Sequence[BaseProcess], victim: int) -> None:
    """SIGKILL one worker, as the kernel would, and then the others, as a launcher would."""
    for process in (group[victim], *group):
        if process.pid is not None and process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it may end by itself at any moment
                os.kill(process.pid, signal.SIGKILL)
    finish(group)


def run(
    config: TrainingConfig,
    workers: int,
    folder: Path,
    checkpoints: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Train to the end; returns rank 0's events."""
    log = folder / f"events-{time.monotonic_ns()}.jsonl"
    codes = finish(start(config, workers, checkpoints, log, prepare=prepare))
    assert codes == [0] * workers, (log.with_suffix(".error")).read_text(encoding="utf-8")
    return read(log)


def wait_for(log: Path, event: str) -> None:
    """Wait until a group has reported an event."""
    assert comes(lambda: any(found["event"] == event for found in read(log))), f"no {event}"


def comes(condition: Callable[[], bool]) -> bool:
    """Whether a condition that may hold for a few milliseconds alone is met while a group runs."""
    deadline = time.monotonic() + STARTED
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return False


def read(log: Path) -> list[dict[str, Any]]:
    """The events that a group has written so far."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint, if it is there."""
    shutil.rmtree(checkpoint, ignore_errors=True)


def losses(events: Sequence[dict[str, Any]]) -> list[float]:
    """Loss of every step."""
    return [event["loss"] for event in events if event["event"] == "Stepped"]


def _work(
    text: str,
    rank: int,
    workers: int,
    port: int,
    checkpoints: Path | None,
    log: Path,
    spare_mib: int | None,
    prepare: Callable[[], None] | None,
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    threading.Thread(target=_die_with_parent, daemon=True).start()
    import torch

    from jobs.training.loop import train

    torch.set_num_threads(1)
    if prepare:
        prepare()
    if spare_mib is not None:
        limit = psutil.Process().memory_info().vms + spare_mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def report(event: Event) -> None:
        line = json.dumps({"event": type(event).__name__, **asdict(event)})
        with log.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")

    try:
        train(TRAINING_CONFIG.validate_json(text), report, checkpoints)
    except BaseException as error:
        log.with_suffix(".error").write_text(repr(error), encoding="utf-8")
        raise
    sys.stdout.flush()


def _die_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
