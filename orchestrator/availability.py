"""Which placements can have their devices, as the job says to wait for them."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from cluster import discovery
from cluster.placement import Placement
from cluster.prices import read_book
from jobs.errors import ClusterError
from jobs.spec.quantities import format_duration
from jobs.spec.resources import PlacementSpec
from orchestrator.context import Context
from orchestrator.decisions import demand
from orchestrator.decisions.plan import Candidate, Plan
from orchestrator.decisions.predict import Prediction
from orchestrator.decisions.select import Winner
from orchestrator.notices import Remark
from orchestrator.stages import devices, nodes

NODES_POLL_S = 2.0
"""How often nodes that were asked for are looked for."""


@contextlib.contextmanager
def grown(context: Context) -> Iterator[Callable[[Placement], None]]:
    """The cluster with the nodes that the job wants, where it says to ask Ray's autoscaler.

    They are kept for as long as this lasts; what is yielded keeps one placement's alone.
    """
    limit = context.spec.resources.autoscale if context.spec.resources else None
    if limit is None:
        yield lambda _: None
        return
    spec, winner = context.spec, context.run.read("winner", Winner)
    with nodes.asking() as asking:
        for group in demand.wanted(
            spec, winner.candidate.placement if winner else None, read_book()
        ):
            asking.ask(demand.bundles(group))
            if _came(context, group, limit.total_seconds()):
                break
        yield lambda chosen: asking.ask(demand.bundles(demand.wanted(spec, chosen)[0]))


def _came(context: Context, group: Sequence[PlacementSpec], limit_s: float) -> bool:
    """Whether the cluster has a group's devices before the time is over."""
    deadline, told = time.monotonic() + limit_s, False
    while missing := demand.lacking(group, discovery.discover()):
        names = ", ".join(str(placement.accelerators) for placement in missing)
        if time.monotonic() > deadline:
            context.notify(Remark(f"no node with {names} came; going on with those that are up"))
            return False
        if not told:
            context.notify(Remark(f"Ray's autoscaler was asked for {names}"))
            told = True
        time.sleep(NODES_POLL_S)
    return True


class Availability:
    """Which placements can have their devices; waits for them as the job says."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context, self._plan = context, plan
        self._wait = context.spec.wait
        self.busy: set[str] = set()
        """Names of placements whose devices stayed busy."""

    def preferred(self) -> Plan:
        """The plan, on the first placement to be had where the job lists them in order."""
        plan, resources = self._plan, self._context.spec.resources
        if resources is None or not resources.ordered or len(plan.placements) == 1:
            return plan
        placement = self.first_free(plan.placements)
        assert placement is not None  # all busy is an error
        self._context.notify(Remark(f"{placement.name} is the first in order with free devices"))
        return plan.only(placement, f"{placement.name} comes before it and is free")

    def first_free(self, placements: Sequence[Placement]) -> Placement | None:
        """The first that has its devices; those that stay busy are told and left out for good."""
        names = ", ".join(placement.name for placement in placements)
        limit = format_duration(self._wait.timeout)

        def told() -> None:
            text = f"waiting up to {limit} for {names}: another job or endpoint holds the devices"
            self._context.notify(Remark(text))

        found = devices.first_free(placements, self._wait.timeout.total_seconds(), told)
        if found is None:
            self._leave_out(placements, f"{names} stayed busy for {limit}")
        return found

    def await_free(self, candidate: Candidate) -> bool:
        """Whether a candidate's devices can be had."""
        return self.first_free([candidate.placement]) is not None

    def able(self, predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
        """Those of candidates whose devices did not stay busy."""
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
                f"{text}; `winnow status` shows what runs, resources.wait how long to wait"
            )
        self._context.notify(Remark(f"{text}; going on with {', '.join(left)}"))
