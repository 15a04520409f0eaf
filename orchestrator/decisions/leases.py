"""Leases of devices, and what is known of the runs that want them, as values."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cluster.placement import Placement
from orchestrator.decisions.measurement import Launch

Resource = Literal["GPU", "CPU"]
Slot = tuple[str, Resource]
"""Devices of one kind on a node, by the node's Ray id."""
State = Literal["runs", "waits", "plans"]
"""Of a run: it holds devices, waits for some, or has not asked for any now."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run that wants devices."""

    run: str
    """Id of the run."""
    job: str
    owner: str
    priority: int
    entered: float
    """When the run was created, in seconds since 1970."""
    has_begun: bool = False
    """Whether it has held devices."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Devices of one kind that a run needs at once."""

    name: str
    """Name of the placement, such as L40S:2."""
    nodes: tuple[str, ...]
    """Ray ids of the nodes that the devices may be on."""
    resource: Resource
    least: int
    most: int
    """More than `least` devices are leased in multiples of it."""

    def slots(self) -> set[Slot]:
        """Returns the slots whose devices can meet the demand."""
        return {(node, self.resource) for node in self.nodes}


@dataclass(frozen=True, slots=True)
class Capacity:
    """Devices of a slot, as Ray counts them."""

    devices: int
    """Devices that runs may use."""
    total: float
    used: float
    """By whoever it is: runs, endpoints, other programs."""
    used_by: Mapping[str, float] = field(default_factory=dict)
    """By the Ray job of each run."""


@dataclass(frozen=True, slots=True)
class World:
    """The cluster at one moment."""

    slots: Mapping[Slot, Capacity]
    jobs: frozenset[str]
    """Ray jobs whose drivers live."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Devices that a run may use."""

    option: int
    """Index of the demand that is met."""
    name: str
    slots: Mapping[Slot, int]
    since: float

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(self.slots.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node of each device."""
        return tuple(node for (node, _), count in self.slots.items() for _ in range(count))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting run stands."""

    number: int
    """1 for the run that is next to get devices."""
    waiting: int
    """Number of runs that wait for the same devices, this one included."""
    why: str
    """Who holds the devices."""

    def __str__(self) -> str:
        return f"place {self.number} of {self.waiting} in the queue: {self.why}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A run as `winnow queue` shows it."""

    run: str
    job: str
    owner: str
    priority: int
    state: State
    devices: str
    """Placements that it holds or waits for."""
    since: float
    """When this state began, in seconds since 1970."""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A placement whose devices are leased."""

    option: Placement
    """The placement that was asked for."""
    placement: Placement
    """The same on the nodes of the leased devices."""
    devices: int
    """Number of leased devices; more than the workers where that was asked for."""


class Devices(Protocol):
    """Leases a run the devices of one placement at a time, and others `beside` them."""

    def take(
        self, options: Sequence[Placement], groups: int = 1, *, awaits_first: bool = False
    ) -> Taken | Place:
        """Lease the devices of the first placement that is free, in place of those held before.

        Args:
            options: Placements, the preferred one first.
            groups: Number of worker groups to have devices for, if there are so many.
            awaits_first: Whether the run keeps its place for the first one while it holds another.

        Returns the run's place in the queue if it has to wait. It then holds no devices, but for
        the moment in which Ray still counts its last group.
        """

    def has_room(self, placement: Placement) -> bool:
        """Returns whether devices are free that no waiting run could use."""

    def give_back(self) -> None:
        """End the lease, or the wait for one."""

    def beside(self) -> "Devices":
        """Returns what leases other devices to the same run meanwhile, of another placement.

        Who holds some and waits for others may wait for a run that waits for those; so only what is
        free at once must be taken.
        """

    def leave(self) -> None:
        """End the lease, and be forgotten by the queue."""


class Unqueued:
    """Takes devices without asking, such as where no other run can want them."""

    def take(
        self, options: Sequence[Placement], groups: int = 1, *, awaits_first: bool = False
    ) -> Taken:
        """Take the first placement."""
        return Taken(options[0], options[0], options[0].workers * groups)

    def has_room(self, placement: Placement) -> bool:
        """Returns False: what is free is not known."""
        return False

    def give_back(self) -> None:
        """Do nothing."""

    def beside(self) -> "Unqueued":
        """Returns itself."""
        return self

    def leave(self) -> None:
        """Do nothing."""


class KeptWorkers(Protocol):
    """A worker group that stays between the stages of a run, on one placement at a time.

    After a failure the next order starts fresh processes.
    """

    @property
    def line(self) -> Any:
        """Gives orders to the workers, from any process of the run."""

    @property
    def warm(self) -> str:
        """Name of the placement whose workers run; empty without any."""

    @property
    def leave(self) -> threading.Event:
        """Once it is set, the workers get the order to save and end."""

    def on(self, placement: Placement, *, is_fresh: bool = False) -> None:
        """Have workers on a placement, which start at once unless they run; with `is_fresh` anew.

        Workers on another placement are ended.
        """

    def keep(self, placement: Placement) -> None:
        """End the workers unless they are on this placement."""

    def serves(self, placement: Placement) -> bool:
        """Returns whether the workers run on this placement."""

    def close(self) -> None:
        """End the workers, if there are any."""

    def launches(self) -> list[Launch]:
        """Returns the starts and ends of workers since the last call."""
