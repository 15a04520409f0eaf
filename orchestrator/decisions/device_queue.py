"""Decides which run gets free devices next, and says what the other runs wait for.

Within a priority, runs that have begun go on first, so that few runs are half done; then the owner
who has used the least device time, and of an owner's runs the one that came first. A run that
needs more devices than are free lets later runs pass it for PATIENCE_S; from then on, devices that
become free are kept for it, if it could run once all leases have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.decisions.allocation import (
    allocate,
    driver_of,
    for_runs,
    held_by_runs,
    leases_by_run,
    other_holders,
)
from orchestrator.decisions.leases import (
    Demand,
    Entry,
    Lease,
    Place,
    Slot,
    State,
    Ticket,
    World,
)

PATIENCE_S = 600.0
"""How long runs that need fewer devices may pass one that needs more."""
ASKING_S = 10.0
"""A waiting run that has not asked for this long has given up."""
UNFIT_S = 60.0
"""How long devices are kept for a run that could not run even if all leases had ended: an ended
group, or a rollout, may use them for a moment."""
COUNTED_S = 3.0
"""How long Ray may take to count the devices of an ended group as free."""
HALF_LIFE_S = 24 * 3600.0
"""After this time, device time that an owner has used counts half."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """Demands of a waiting run, the preferred one first."""

    demands: tuple[Demand, ...]
    since: float
    asked: float

    def slots(self) -> set[Slot]:
        return set().union(*(each.slots() for each in self.demands))


class DeviceQueue:
    """The queue of a cluster. Runs are known by their Ray job; each holds one lease at most.

    What a run holds besides is to the queue a run of its own, as `driver_of` says.
    """

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._claims: dict[str, _Claim] = {}
        self._leases: dict[str, Lease] = {}
        self._begun: set[str] = set()
        self._unfit_since: dict[tuple[str, Demand], float] = {}
        """Since when a waiting run's demand does not fit into what endpoints leave to runs."""
        self._used_s: dict[str, float] = {}
        """Device seconds of each owner, faded."""
        self._settled = 0.0

    def enter(self, job: str, ticket: Ticket) -> None:
        """Add a run, or replace what is known of it."""
        self._tickets[job] = ticket

    def leave(self, job: str) -> None:
        """Remove a run with its lease, and what it holds besides."""
        for each in [each for each in self._tickets if job in (each, driver_of(each))]:
            for known in (self._tickets, self._claims, self._leases):
                known.pop(each, None)
            self._begun.discard(each)

    def give_back(self, job: str) -> None:
        """End a run's lease and its wait; the run stays known."""
        self._claims.pop(job, None)
        self._leases.pop(job, None)

    def ask(
        self,
        job: str,
        demands: Sequence[Demand],
        world: World,
        now: float,
        waited_s: float = 0.0,
        *,
        awaits_first: bool = False,
    ) -> Lease | Place:
        """Lease devices for one of a run's demands, or return the run's place in the queue.

        The run has to be entered before. The lease replaces an earlier one of the run; a run that
        has to wait gives its earlier lease back. A waiting run has to ask again within ASKING_S;
        `waited_s` is how long it has waited. With `awaits_first` it may get a lease for a later
        demand and still waits for the first one.
        """
        self.settle(world, now)
        if job not in self._tickets:
            return Place(1, 1, "its driver has ended")
        if self._tickets[job].has_begun:
            self._begun.add(job)
        before = self._claims.get(job)
        since = before.since if before else now - waited_s
        self._claims[job] = _Claim(tuple(demands), since, now)
        lease = self._granted(job, world, now)
        is_first = lease is not None and (lease.option == 0 or not awaits_first)
        if not is_first and self._waits_for_own(job, lease, world, now):
            return self._place(job, world)
        if lease is None:
            self._leases.pop(job, None)
            return self._place(job, world)
        if is_first:
            del self._claims[job]
        held = self._leases.get(job)
        if held and held.slots == lease.slots:
            lease = replace(lease, since=held.since)
        self._leases[job] = lease
        self._begun.add(job)
        return lease

    def has_room(self, job: str, demand: Demand, world: World, now: float) -> bool:
        """Returns whether devices are free that no waiting run could use, beside the run's own."""
        self.settle(world, now)
        return bool(allocate(demand, self._left_by(self._order(), world, now), {}))

    def settle(self, world: World, now: float) -> None:
        """Forget runs whose driver has ended, and waits that were given up; count device time."""
        passed_s = max(0.0, now - self._settled)
        fade = 0.5 ** (passed_s / HALF_LIFE_S)
        self._used_s = {owner: used * fade for owner, used in self._used_s.items()}
        for job, lease in self._leases.items():
            owner = self._tickets[job].owner
            self._used_s[owner] = self._used_s.get(owner, 0.0) + lease.devices * passed_s
        self._settled = now
        for job in [job for job in self._tickets if driver_of(job) not in world.jobs]:
            self.leave(job)
        for job in [job for job, claim in self._claims.items() if now - claim.asked > ASKING_S]:
            del self._claims[job]
        self._unfit_since = {k: v for k, v in self._unfit_since.items() if k[0] in self._claims}

    def entries(self, world: World, now: float) -> tuple[Entry, ...]:
        """Returns the runs that hold devices, then those that wait in their order, then others."""
        self.settle(world, now)
        leases = leases_by_run(self._leases)
        tickets = {driver_of(job): ticket for job, ticket in self._tickets.items()}
        waiting = [job for job in self._order() if job in tickets and job not in leases]
        holding = sorted(leases, key=lambda job: leases[job][0].since)
        order = dict.fromkeys((*holding, *waiting, *tickets))
        return tuple(self._entry(job, tickets[job], leases.get(job, []), world) for job in order)

    def _entry(self, job: str, ticket: Ticket, leases: Sequence[Lease], world: World) -> Entry:
        claim = self._claims.get(job)
        state: State
        if leases:
            state, since = "runs", leases[0].since
            devices = ", ".join(lease.name for lease in leases)
        elif claim:
            names = ", ".join(each.name for each in claim.demands)
            state, devices, since = "waits", names, claim.since
        else:
            state, devices, since = "plans", "", ticket.entered
        place = self._place(job, world) if state == "waits" else None
        own = (ticket.run, ticket.job, ticket.owner, ticket.priority)
        return Entry(*own, state, devices, since, place)

    def _order(self) -> list[str]:
        """Returns the waiting runs, the next one first."""

        def rank(job: str) -> tuple[float, ...]:
            ticket = self._tickets[job]
            if job in self._begun:
                return (-ticket.priority, 0.0, 0.0, ticket.entered)
            return (-ticket.priority, 1.0, self._used_s.get(ticket.owner, 0.0), ticket.entered)

        return sorted(self._claims, key=rank)

    def _granted(self, job: str, world: World, now: float) -> Lease | None:
        """Returns what a waiting run gets, after those that come before it."""
        order = self._order()
        return self._met(job, self._left_by(order[: order.index(job)], world, now), now)

    def _waits_for_own(self, job: str, lease: Lease | None, world: World, now: float) -> bool:
        """Returns whether a run would get a better lease if its own devices were all unused.

        For a moment, Ray counts those of a group that has just ended as used by others.
        """
        if job not in self._leases or now - self._claims[job].since >= COUNTED_S:
            return False
        unused = {slot: max(0, count) for slot, count in self._free(world).items()}
        hoped = self._met(job, unused, now)
        return hoped is not None and (lease is None or hoped.option < lease.option)

    def _left_by(self, waiting: Sequence[str], world: World, now: float) -> dict[Slot, int]:
        """Returns the free devices that these waiting runs, the next one first, leave to others."""
        free = self._free(world)
        for other in waiting:
            claim, own = self._claims[other], self._own(other)
            if found := self._met(other, free, now):
                for slot, count in found.slots.items():  # it asks again in a moment
                    free[slot] -= max(0, count - own.get(slot, 0))
            elif now - claim.since > PATIENCE_S:
                for demand in claim.demands:
                    if self._is_kept(other, demand, world, now):
                        for slot in demand.slots() & set(free):
                            free[slot] = min(free[slot], 0)
        return free

    def _is_kept(self, job: str, demand: Demand, world: World, now: float) -> bool:
        """Returns whether what becomes free is kept for a demand, which may be met one day."""
        possible = {slot: for_runs(each, world) for slot, each in world.slots.items()}
        if allocate(demand, possible, {}):
            self._unfit_since.pop((job, demand), None)
            return True
        return now - self._unfit_since.setdefault((job, demand), now) < UNFIT_S

    def _met(self, job: str, free: dict[Slot, int], now: float) -> Lease | None:
        """Returns the lease that free devices and the run's own allow."""
        own = self._own(job)
        usable = {slot: count + own.get(slot, 0) for slot, count in free.items()}
        for number, demand in enumerate(self._claims[job].demands):
            if slots := allocate(demand, usable, own):
                return Lease(number, demand.name, slots, now)
        return None

    def _own(self, job: str) -> Mapping[Slot, int]:
        return self._leases[job].slots if job in self._leases else {}

    def _free(self, world: World) -> dict[Slot, int]:
        """Returns the devices that nobody holds, by slot."""
        return {
            slot: for_runs(each, world) - held_by_runs(slot, each, world, self._leases)
            for slot, each in world.slots.items()
        }

    def _place(self, job: str, world: World) -> Place:
        wanted = self._claims[job].slots()
        rivals = [other for other in self._order() if self._claims[other].slots() & wanted]
        holders = [
            f"{self._tickets[other].job} of {self._tickets[other].owner} holds {lease.name}"
            for other, lease in self._leases.items()
            if other != job and wanted & set(lease.slots)
        ]
        holders += other_holders(wanted, set(map(driver_of, (job, *self._leases))), world)
        number = rivals.index(job) + 1
        kept = "free devices are kept for the runs before it" if number > 1 else "some are in use"
        return Place(number, len(rivals), ", ".join(holders) or kept)
