"""The end of a run's workers, whose Ray part is stood in for."""

import queue as queues
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.training.events import WorkersReady
from tests.builders import inventory, job, plan_of


class Queue(queues.Queue[Any]):
    """A queue of Ray's, in this process."""


def test_workers_that_tell_something_all_the_time_are_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their thread needs the line to the run while it is ended."""
    from orchestrator.stages import workers
    from orchestrator.stages.secrets import Secrets

    def batches(start: Any, _: Any) -> Iterator[list[Any]]:
        while not start.is_over():
            yield [WorkersReady()]
            time.sleep(0.01)

    monkeypatch.setattr(workers, "queue_here", Queue)
    monkeypatch.setattr(workers, "batches", batches)
    (candidate,) = plan_of(job(), inventory(T4=1)).candidates[:1]
    made = workers.Workers(Secrets(), tmp_path, 60.0)
    for _ in range(3):
        made.on(candidate.placement)
        assert made._shift
        thread = made._shift.thread
        began = time.monotonic()
        made.close()
        assert time.monotonic() - began < workers.CLOSE_S / 2
        assert thread
        assert not thread.is_alive()
