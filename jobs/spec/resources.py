"""The resources section: candidate placements among which the planner chooses."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import Accelerators, Duration


class PlacementSpec(SpecModel):
    """A number of devices of one kind; a run never mixes kinds."""

    accelerators: Accelerators
    """NAME:COUNT, one training worker per device; `cpu:2` is two workers with a core each."""
    spot: bool | None = None
    """true uses spot nodes alone, at their price; false uses none; left out, both kinds are
    used."""


class WaitSpec(SpecModel):
    """What to do while the wanted devices are busy."""

    timeout: Duration = timedelta(minutes=20)
    """Longest wait for the devices."""
    then: Literal["next_best", "fail"] = "next_best"
    """What follows the wait: the next placement by price-performance, or an error."""


class ResourcesSpec(SpecModel):
    """The hardware that the job may use."""

    any_of: Annotated[Items[PlacementSpec], Field(max_length=64)] = ()
    """Placements among which the sweep finds the best; their order has no meaning."""
    ordered: Annotated[Items[PlacementSpec], Field(max_length=64)] = ()
    """Placements by preference, instead of any_of: the first whose devices are there is used."""
    max_hourly_cost: Annotated[float | None, Field(gt=0)] = None
    """Most that a placement may cost, in USD per hour; dearer ones are left out."""
    autoscale: Duration | None = None
    """Request nodes with the devices of every placement (with `ordered`, of one after the other)
    from Ray's autoscaler, and wait at most this long for them; they are released when the run ends.
    Left out, only nodes that are up are used."""
    wait: WaitSpec = WaitSpec()
    """What to do while devices are busy."""

    @property
    def placements(self) -> Iterator[tuple[tuple[str, int], PlacementSpec]]:
        """Every listed placement, with its place in this section."""
        for name, listed in (("any_of", self.any_of), ("ordered", self.ordered)):
            for index, placement in enumerate(listed):
                yield (name, index), placement
