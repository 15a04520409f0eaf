"""Probes of other placements while the trials of a sweep run."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from cluster.placement import Placement
from jobs.errors import ClusterError, TrainingError
from orchestrator.context import Context
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import Taken
from orchestrator.probing import keep_firsts, must_end
from orchestrator.speeds import Speeds
from orchestrator.stages import speed
from orchestrator.stages.secrets import secrets_of
from orchestrator.stages.workers import Workers

ABANDON_EVERY_S = 1.0
"""How often probes beside trials that fail are told to end."""
WAIT_S = 10.0
"""How long a group may wait for devices that it has leased and that Ray still counts as used."""


@contextlib.contextmanager
def probing_beside(
    context: Context, speeds: Speeds, placements: Sequence[Placement]
) -> Iterator[None]:
    """Probes other placements in a thread, inside the block, whose end waits for it.

    It takes free devices by a lease of its own, waits for none, and gives them back as soon as it
    is done. Meanwhile nothing else may use `speeds`, but for its `trials`. A placement that cannot
    be probed is told, and is left unmeasured.
    """
    todo = [c for c in speeds.unmeasured if c.placement in placements]
    if not todo:
        yield
        return
    beside = _Beside(context, speeds)
    thread = threading.Thread(target=beside.probe, args=(todo,), daemon=True)
    try:
        thread.start()
        yield
        thread.join()
    except BaseException:
        beside.abandon(thread)
        raise
    if beside.error:
        raise beside.error
    keep_firsts(context, speeds, todo)


class _Beside:
    """What probes beside trials: a second lease of the run, and a second group of workers."""

    def __init__(self, context: Context, speeds: Speeds) -> None:
        self._context, self._speeds = context, speeds
        self._devices, self._is_over = context.devices.beside(), threading.Event()
        self._workers = Workers(secrets_of(context.spec), context.run.folder, WAIT_S)
        self.error: Exception | None = None
        """A bug's error in the thread, which `probing_beside` raises in the caller's."""

    def probe(self, todo: Sequence[Candidate]) -> None:
        """Probe candidates, on one placement after another."""
        try:
            self._probe(todo)
        except Exception as error:  # noqa: BLE001 - the caller's thread raises it
            self.error = error

    def _probe(self, todo: Sequence[Candidate]) -> None:
        context, speeds = self._context, self._speeds
        names = ", ".join(dict.fromkeys(candidate.placement.name for candidate in todo))
        context.remark(f"{names}: probed while trials run")
        callbacks = speed.ProbeCallbacks(
            speeds.take, speeds.take_launch, speeds.give_up, context.remark, self._first_free
        )
        try:
            speed.measure(context.spec, todo, context.run.folder, callbacks, workers=self._workers)
        except (TrainingError, ClusterError) as error:
            if not self._is_over.is_set():
                context.remark(f"{names} could not be probed while trials run: {error}")
        finally:
            self._workers.close()
            self._devices.leave()
            for launch in self._workers.launches():
                speeds.take_launch(launch)

    def abandon(self, thread: threading.Thread) -> None:
        """End the workers, also those that may just start, until `probe` has returned."""
        self._is_over.set()
        while thread.is_alive():
            self._workers.abandon()
            thread.join(ABANDON_EVERY_S)

    def _first_free(self, options: Sequence[Placement]) -> Taken | None:
        """Take the first placement that is free now, and that no other run waits for."""
        if self._is_over.is_set() or must_end(self._speeds, options):
            return None
        self._workers.close()
        self._devices.give_back()
        free = [option for option in options if self._devices.has_room(option)]
        taken = self._devices.take(free) if free else None
        if isinstance(taken, Taken):
            return taken
        self._devices.give_back()
        return None
