"""The resources section: candidate placements among which the planner chooses."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import Accelerators, Duration


class PlacementSpec(SpecModel):
    """One candidate: so many devices of one kind. A run never mixes kinds."""

    accelerators: Accelerators
    """NAME:COUNT, one training worker per device; `cpu:2` is two workers with a core each."""
    spot: bool | None = None
    """true: only spot nodes, at their price; false: none of them; left out, nodes of both kinds."""


class WaitSpec(SpecModel):
    """What to do while the wanted devices are busy."""

    timeout: Duration = timedelta(minutes=20)
    """How long to wait."""
    then: Literal["next_best", "fail"] = "next_best"
    """What follows: the next placement by price-performance, or an error."""


class ResourcesSpec(SpecModel):
    """Where the job may run."""

    any_of: Annotated[Items[PlacementSpec], Field(max_length=64)] = ()
    """Candidate placements, in no order: the sweep finds the best."""
    ordered: Annotated[Items[PlacementSpec], Field(max_length=64)] = ()
    """Instead of any_of: placements by preference; the first that can be had is taken."""
    max_hourly_cost: Annotated[float | None, Field(gt=0)] = None
    """Placements that cost more than this, in USD per hour, are not considered."""
    autoscale: Duration | None = None
    """Ask Ray's autoscaler for nodes with the devices of every placement (of `ordered`, one after
    the other), and wait so long for them; left out, only nodes that are up are used. They are let
    go when the run ends."""
    wait: WaitSpec = WaitSpec()
    """What to do while devices are busy."""

    @property
    def placements(self) -> Iterator[tuple[tuple[str, int], PlacementSpec]]:
        """Every listed placement, with its place in this section."""
        for name, listed in (("any_of", self.any_of), ("ordered", self.ordered)):
            for index, placement in enumerate(listed):
                yield (name, index), placement
