"""Waits for the devices of placements, and requests nodes from the autoscaler, as the job says."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from cluster import discovery
from cluster.placement import Placement
from cluster.prices import read_book
from jobs.errors import ClusterError
from jobs.spec.quantities import format_duration
from jobs.spec.resources import PlacementSpec
from orchestrator.context import Context
from orchestrator.decisions import demand
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import Place, Taken
from orchestrator.decisions.measurement import Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.select import Winner
from orchestrator.notices import StageStarted, Waiting
from orchestrator.stages import nodes

NODES_POLL_S = 2.0
"""How often the cluster is checked for requested nodes."""
ASK_S = 1.0
"""How often a waiting run asks the queue."""
TELL_AFTER_S = 5.0
"""Shorter waits are not told."""


@contextlib.contextmanager
def requested_nodes(context: Context) -> Iterator[Callable[[Placement], None]]:
    """Request the job's nodes from Ray's autoscaler for the block, if it has resources.autoscale.

    Yields a function that reduces the request to the nodes of one placement.
    """
    spec = context.spec
    limit = spec.resources.autoscale if spec.resources else None
    groups = wanted_nodes(context) if limit else ()
    if limit is None or not any(groups):
        yield lambda _: None
        return
    was_trained = context.is_trained
    with nodes.node_requests() as requests:
        for group in groups:
            requests.request(demand.bundles(group))
            if _wait_for_nodes(context, group, limit.total_seconds()):
                break

        def reduce(chosen: Placement) -> None:
            if not was_trained:  # otherwise only the endpoint's nodes are requested
                requests.request(demand.bundles(demand.wanted(spec, chosen)[0]))

        yield reduce


def wanted_nodes(context: Context) -> tuple[tuple[PlacementSpec, ...], ...]:
    """Returns groups of placements to request together, the preferred group first.

    A run that is trained needs only the endpoint's nodes, one with a winner those of its placement.
    """
    if context.is_trained:
        return (demand.served(context.spec),)
    winner = context.run.read("winner", Winner)
    return demand.wanted(context.spec, winner.candidate.placement if winner else None, read_book())


def _wait_for_nodes(context: Context, group: Sequence[PlacementSpec], limit_s: float) -> bool:
    """Wait until the cluster has a group's devices; returns False after `limit_s`."""
    deadline, is_logged = time.monotonic() + limit_s, False
    while missing := demand.lacking(group, discovery.discover()):
        names = ", ".join(str(placement.accelerators) for placement in missing)
        if time.monotonic() > deadline:
            text = f"no node with {names} started in time; continuing with the nodes that are up"
            context.remark(text)
            return False
        if not is_logged:
            context.notify(Waiting(f"requested {names} from Ray's autoscaler"))
            is_logged = True
        time.sleep(NODES_POLL_S)
    return True


class Availability:
    """Selects placements with free devices, takes these, and waits for them as the job says."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context, self._plan = context, plan
        self._wait = context.spec.wait
        self.busy: set[str] = set()
        """Names of placements whose devices stayed busy."""

    def preferred(self) -> Plan:
        """Returns the plan; for ordered placements, restricted to the first that is free."""
        plan, resources = self._plan, self._context.spec.resources
        if resources is None or not resources.ordered or len(plan.placements) == 1:
            return plan
        taken = self.first_free(plan.placements)
        assert taken is not None  # first_free raises if all stay busy
        placement = taken.option
        self._context.remark(f"{placement.name} is the first in order with free devices")
        return plan.only(placement, f"{placement.name} precedes it in order and is free")

    def first_free(
        self, placements: Sequence[Placement], groups: int = 1, *, is_optional: bool = False
    ) -> Taken | None:
        """Take the first placement with free devices, in place of those that were taken before.

        If all stay busy, they are left out of the rest of the run, and None is returned.

        Args:
            placements: The preferred one first.
            groups: Number of worker groups to have devices for, if there are so many.
            is_optional: Whether the run can go on without what the devices are for, so that
                placements that stay busy are not left out.

        Raises:
            ClusterError: if no placement is left, or the job says to fail.
        """
        names = ", ".join(placement.name for placement in placements)
        limit, began = format_duration(self._wait.timeout), time.monotonic()
        told: Place | None = None
        workers = self._context.workers
        while isinstance(answer := self._context.devices.take(placements, groups), Place):
            if workers:
                workers.close()  # another run is to have their devices
            waited_s = time.monotonic() - began
            if waited_s >= self._wait.timeout.total_seconds():
                self._context.devices.give_back()
                self._context.clock.leave_out(waited_s)
                text = f"{names} stayed busy for {limit} ({answer.why})"
                if is_optional:
                    self._context.remark(f"{text}; what was measured before counts")
                else:
                    self._leave_out(placements, text)
                return None
            if waited_s >= TELL_AFTER_S and answer != told:
                text = f"waiting up to {limit} for {names}: {answer}"
                notice = StageStarted("queue", text) if told else Waiting(text)
                self._context.notify(notice)
                told = answer
            time.sleep(ASK_S)
        waited_s = time.monotonic() - began
        self._context.clock.leave_out(waited_s)
        if workers:
            workers.keep(answer.placement)
        if told:
            waited = format_duration(timedelta(seconds=round(waited_s)))
            self._context.remark(f"{answer.option.name} is leased after waiting for {waited}")
        return answer

    def await_free(self, candidate: Candidate, groups: int = 1) -> Taken | None:
        """Take a candidate's devices, as `first_free` does."""
        return self.first_free([candidate.placement], groups)

    def available(self, predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
        """Returns the predictions of candidates whose placement was not left out as busy."""
        return tuple(
            prediction
            for prediction in predictions
            if self._plan.candidate(prediction.candidate).placement.name not in self.busy
        )

    def _leave_out(self, placements: Sequence[Placement], text: str) -> None:
        self.busy |= {placement.name for placement in placements}
        left = [p.name for p in self._plan.placements if p.name not in self.busy]
        if self._wait.then == "fail" or not left:
            raise ClusterError(
                f"{text}; `winnow queue` shows who holds devices, resources.wait.timeout says how"
                " long to wait"
            )
        self._context.remark(f"{text}; continuing with {', '.join(left)}")
