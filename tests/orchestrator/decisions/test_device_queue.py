"""The order in which runs get devices, in made-up clusters, some of whose runs die."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from orchestrator.decisions import device_queue
from orchestrator.decisions.device_queue import DeviceQueue
from orchestrator.decisions.leases import (
    Capacity,
    Demand,
    Lease,
    Place,
    Slot,
    Ticket,
    World,
)

NOW = 1e9


def slot(node: str) -> Slot:
    return node, "GPU"


def world(jobs: str = "abcdefgh", **devices: int) -> World:
    """A cluster with so many devices on each node, none of them used."""
    slots = {slot(node): Capacity(n, n, 0.0) for node, n in devices.items()}
    return World(slots, frozenset(jobs))


def demand(count: int = 1, nodes: Sequence[str] = ("n",), most: int = 0) -> Demand:
    return Demand(f"T4:{count}", tuple(nodes), "GPU", count, most or count)


def queue(*tickets: tuple[str, str, int]) -> DeviceQueue:
    """A queue of runs with owner and priority, in the order in which they came."""
    made = DeviceQueue()
    for number, (job, owner, priority) in enumerate(tickets):
        made.enter(job, Ticket(f"run-{job}", f"job-{job}", owner, priority, NOW + number))
    return made


def test_who_came_first_goes_first_whoever_asks_first() -> None:
    runs = queue(("a", "ann", 0), ("b", "ann", 0), ("c", "ann", 0))
    one = world(n=1)
    assert isinstance(runs.ask("c", [demand()], one, NOW), Lease)
    assert isinstance(runs.ask("b", [demand()], one, NOW), Place)
    assert isinstance(runs.ask("a", [demand()], one, NOW), Place)
    runs.give_back("c")
    assert runs.ask("b", [demand()], one, NOW + 1) == Place(
        2, 2, "free devices are kept for the runs before it"
    )
    assert isinstance(runs.ask("a", [demand()], one, NOW + 1), Lease)
    assert runs.ask("b", [demand()], one, NOW + 2) == Place(1, 1, "job-a of ann holds T4:1")


def test_a_higher_priority_goes_first() -> None:
    runs = queue(("a", "ann", 0), ("b", "ann", 5))
    busy, free = world(n=0), world(n=1)
    for job in "ab":
        assert isinstance(runs.ask(job, [demand()], busy, NOW), Place)
    assert isinstance(runs.ask("a", [demand()], free, NOW + 1), Place)
    assert isinstance(runs.ask("b", [demand()], free, NOW + 1), Lease)


def test_an_owner_who_used_less_goes_before_one_who_came_earlier() -> None:
    runs = queue(("a", "ann", 0), ("b", "ann", 0), ("c", "cem", 0))
    one = world(n=1)
    runs.ask("a", [demand()], one, NOW)
    for job in "bc":
        assert isinstance(runs.ask(job, [demand()], one, NOW + 100), Place)
    runs.leave("a")
    assert isinstance(runs.ask("b", [demand()], one, NOW + 101), Place)
    assert isinstance(runs.ask("c", [demand()], one, NOW + 101), Lease)


def test_a_run_that_has_begun_goes_on_before_another_owner_begins() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    two = world(n=1, m=1)
    runs.ask("a", [demand()], two, NOW)
    assert isinstance(runs.ask("a", [demand(2, "nm")], world(n=1), NOW + 50), Place)
    assert isinstance(runs.ask("b", [demand(1, "nm")], world(), NOW + 51), Place)
    found = runs.ask("b", [demand(1, "nm")], two, NOW + 52)
    assert isinstance(found, Place)
    assert found.number == 2


def test_a_run_holds_the_devices_of_one_placement() -> None:
    """Whoever waits holds nothing, so no two runs wait for each other."""
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    two = world(n=1, m=1)
    assert isinstance(runs.ask("a", [demand(1, "n")], two, NOW), Lease)
    assert isinstance(runs.ask("b", [demand(1, "m")], two, NOW), Lease)
    assert isinstance(runs.ask("a", [demand(1, "m")], two, NOW), Place)
    found = runs.ask("b", [demand(1, "n")], two, NOW)
    assert isinstance(found, Lease)
    assert found.nodes == ("n",)
    assert isinstance(runs.ask("a", [demand(1, "m")], two, NOW + 1), Lease)


def test_what_a_run_holds_beside_its_lease_is_counted_once_and_ends_with_its_driver() -> None:
    """Ray counts all groups of a driver as one run's."""
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    runs.enter("a/probes", Ticket("run-a", "job-a", "ann", 0, NOW))
    idle = world(n=2, m=1)
    assert isinstance(runs.ask("a", [demand(1, "n")], idle, NOW), Lease)
    assert isinstance(runs.ask("a/probes", [demand(1, "m")], idle, NOW), Lease)
    used = {slot(node): Capacity(n, n, 1.0, {"a": 1.0}) for node, n in (("n", 2), ("m", 1))}
    busy = replace(idle, slots=used)
    assert runs.ask("b", [demand(1, "m")], busy, NOW) == Place(1, 1, "job-a of ann holds T4:1")
    assert isinstance(runs.ask("b", [demand(1, "n")], busy, NOW), Lease)
    runs.give_back("b")
    runs.give_back("a/probes")
    assert isinstance(runs.ask("b", [demand(1, "m")], idle, NOW), Lease)
    runs.ask("a/probes", [demand(1, "n")], idle, NOW)
    held = [(each.run, each.devices) for each in runs.entries(idle, NOW) if each.state == "runs"]
    assert sorted(held) == [("run-a", "T4:1, T4:1"), ("run-b", "T4:1")]
    (left,) = runs.entries(replace(idle, jobs=frozenset("b")), NOW)
    assert left.run == "run-b"


def test_a_lease_grows_and_shrinks_in_place() -> None:
    runs, four = queue(("a", "ann", 0), ("b", "bob", 0)), world(n=2, m=2)
    first = runs.ask("a", [demand(1, "nm")], four, NOW)
    assert isinstance(first, Lease)
    many = runs.ask("a", [demand(1, "nm", most=3)], four, NOW)
    assert isinstance(many, Lease)
    assert many.devices == 3
    assert many.slots[slot(first.nodes[0])] == 2
    again = runs.ask("a", [demand(1, "nm")], four, NOW)
    assert isinstance(again, Lease)
    assert again.devices == 1
    other = runs.ask("b", [demand(1, "nm", most=9)], four, NOW)
    assert isinstance(other, Lease)
    assert other.devices == 3


def test_workers_share_as_few_nodes_as_can_be() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    nodes = world(n=4, m=2)
    found = runs.ask("a", [demand(2, "nm")], nodes, NOW)
    assert isinstance(found, Lease)
    assert found.nodes == ("m", "m")
    assert isinstance(runs.ask("b", [demand(3, "nm", most=9)], nodes, NOW), Lease)


def test_devices_of_endpoints_and_dying_groups_are_not_free() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    served = World({slot("n"): Capacity(2, 2.0, 1.0)}, frozenset("ab"))
    found = runs.ask("a", [demand(2)], served, NOW)
    assert isinstance(found, Place)
    assert found.why == "an endpoint or another program holds devices"
    assert isinstance(runs.ask("a", [demand(1)], served, NOW), Lease)
    runs.give_back("a")
    dying = World({slot("n"): Capacity(2, 2.0, 2.0, {"a": 2.0})}, frozenset("ab"))
    assert isinstance(runs.ask("b", [demand(1)], dying, NOW), Place)
    assert isinstance(runs.ask("a", [demand(1)], dying, NOW), Place)


def test_a_core_that_is_kept_for_endpoints_is_not_counted_twice() -> None:
    """A machine offers two of its four cores, and a replica runs on one of the others."""
    cores: World = World({("n", "CPU"): Capacity(2, 4.0, 1.0)}, frozenset("a"))
    found = queue(("a", "ann", 0)).ask("a", [Demand("cpu:2", ("n",), "CPU", 2, 2)], cores, NOW)
    assert isinstance(found, Lease)


def test_smaller_runs_pass_a_large_one_until_its_patience_ends() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0), ("c", "cem", 0), ("d", "dan", 0))
    two = world(n=2)
    assert isinstance(runs.ask("a", [demand(1)], two, NOW), Lease)
    assert isinstance(runs.ask("b", [demand(2)], two, NOW), Place)
    assert isinstance(runs.ask("c", [demand(1)], two, NOW), Lease)
    runs.leave("c")
    late = NOW + device_queue.PATIENCE_S
    for second in range(1, int(device_queue.PATIENCE_S), 5):
        runs.ask("b", [demand(2)], two, NOW + second)
    runs.ask("b", [demand(2)], two, late + 1)
    kept = runs.ask("d", [demand(1)], two, late + 1)
    assert isinstance(kept, Place)
    assert isinstance(runs.ask("a", [demand(1)], two, late + 1), Lease)  # its own device
    assert not runs.has_room("a", demand(1), two, late + 1)
    runs.leave("a")
    assert isinstance(runs.ask("b", [demand(2)], two, late + 2), Lease)


@pytest.mark.parametrize(
    "without",
    [
        World({slot("n"): Capacity(2, 2.0, 1.0)}, frozenset("bd")),  # an endpoint holds one
        world(n=1),  # the other node is down
    ],
)
def test_nothing_is_kept_for_a_run_that_cannot_have_what_it_wants(without: World) -> None:
    runs = queue(("b", "bob", 0), ("d", "dan", 0))
    late = int(device_queue.PATIENCE_S) + 5
    for second in range(0, late, 5):
        runs.ask("b", [demand(2)], without, NOW + second)
    assert isinstance(runs.ask("d", [demand(1)], without, NOW + late), Place)
    for second in range(late, late + int(device_queue.UNFIT_S), 5):
        runs.ask("b", [demand(2)], without, NOW + second)
    given_up = NOW + late + device_queue.UNFIT_S
    assert isinstance(runs.ask("d", [demand(1)], without, given_up), Lease)


def test_a_group_that_ends_does_not_end_what_is_kept() -> None:
    """Ray counts the devices of an ended group as used for a moment, by no run."""
    runs = queue(("a", "ann", 0), ("b", "bob", 0), ("d", "dan", 0))
    four, late = world(n=4), int(device_queue.PATIENCE_S) + 5
    assert isinstance(runs.ask("a", [demand(1)], four, NOW), Lease)
    for second in range(0, late, 5):
        runs.ask("b", [demand(4)], four, NOW + second)
    runs.leave("a")
    stale = World({slot("n"): Capacity(4, 4.0, 1.0)}, frozenset("bd"))
    assert isinstance(runs.ask("d", [demand(1)], stale, NOW + late), Place)
    assert isinstance(runs.ask("b", [demand(4)], four, NOW + late + 1), Lease)


def test_devices_that_are_kept_are_not_made_up() -> None:
    """An endpoint took two of a run's four while others waited for long."""
    runs = queue(("a", "ann", 0), ("b", "bob", 5))
    four, late = world(n=4), int(device_queue.PATIENCE_S) + 5
    assert isinstance(runs.ask("a", [demand(4)], four, NOW), Lease)
    for second in range(0, late, 5):
        runs.ask("b", [demand(2)], four, NOW + second)
    served = World({slot("n"): Capacity(4, 4.0, 2.0)}, four.jobs)
    assert isinstance(runs.ask("a", [demand(4)], served, NOW + late), Place)


def test_an_elastic_run_holds_what_is_left_and_waits_for_what_returns() -> None:
    """Nobody who came later gets it, and Ray's late count takes nothing away."""
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    both, one = world(n=1, m=1), world(n=1)
    wanted = [demand(2, "nm"), demand(1, "nm")]
    assert isinstance(runs.ask("a", wanted[:1], both, NOW), Lease)
    stale = World({slot("n"): Capacity(1, 1.0, 0.0), slot("m"): Capacity(1, 1.0, 1.0)}, both.jobs)
    assert isinstance(runs.ask("a", wanted, stale, NOW + 20, awaits_first=True), Place)
    assert isinstance(runs.ask("b", [demand(1, "nm")], both, NOW + 20), Place)
    left = runs.ask("a", wanted, one, NOW + 30, awaits_first=True)
    assert isinstance(left, Lease)
    assert left.nodes == ("n",)
    assert [each.state for each in runs.entries(one, NOW + 30)] == ["runs", "waits"]
    assert isinstance(runs.ask("b", [demand(1, "nm")], both, NOW + 31), Place)
    whole = runs.ask("a", wanted, both, NOW + 31, awaits_first=True)
    assert isinstance(whole, Lease)
    assert sorted(whole.nodes) == ["m", "n"]


def test_a_run_keeps_its_devices_while_ray_still_counts_its_last_group() -> None:
    """What is still used after a moment is used by somebody else, and the lease ends."""
    runs, held = queue(("a", "ann", 0), ("b", "bob", 0)), world(n=2)
    stale = World({slot("n"): Capacity(2, 2.0, 2.0)}, frozenset("ab"))
    assert isinstance(runs.ask("a", [demand(2)], held, NOW), Lease)
    assert isinstance(runs.ask("a", [demand(2)], stale, NOW + 50), Place)
    assert isinstance(runs.ask("b", [demand(1)], held, NOW + 51), Place)
    again = runs.ask("a", [demand(2)], held, NOW + 51)
    assert isinstance(again, Lease)
    assert again.since == NOW
    runs.ask("a", [demand(2)], stale, NOW + 60)
    runs.ask("a", [demand(2)], stale, NOW + 60 + device_queue.COUNTED_S)
    assert [each.state for each in runs.entries(stale, NOW + 64)] == ["waits", "plans"]


def test_a_queue_that_was_started_anew_grants_nothing_twice() -> None:
    """It sees the groups of runs that do not ask, and hears who has begun and waits since when."""
    cores = World({("n", "CPU"): Capacity(2, 64.0, 2.0, {"a": 2.0})}, frozenset("abcd"))
    runs, one = DeviceQueue(), Demand("cpu:1", ("n",), "CPU", 1, 1)
    for number, job in enumerate("bcd"):
        runs.enter(job, Ticket(job, job, job, 0, NOW + number, has_begun=job == "c"))
    for job in "bcd":
        assert isinstance(runs.ask(job, [one], cores, NOW, 500), Place)
    free = replace(cores, slots={("n", "CPU"): Capacity(1, 64.0, 0.0)})
    assert isinstance(runs.ask("b", [one], free, NOW + 1, 501), Place)
    assert isinstance(runs.ask("c", [one], free, NOW + 1, 501), Lease)
    assert [each.since for each in runs.entries(free, NOW + 2)] == [NOW + 1, NOW - 500, NOW - 500]


def test_a_run_that_no_longer_asks_stands_in_nobody_s_way() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    assert isinstance(runs.ask("a", [demand()], world(), NOW), Place)
    late = NOW + device_queue.ASKING_S + 1
    assert isinstance(runs.ask("b", [demand()], world(n=1), late), Lease)


def test_a_group_grows_only_into_devices_that_nobody_waits_for() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 0))
    assert isinstance(runs.ask("a", [demand()], world(n=1), NOW), Lease)
    assert isinstance(runs.ask("b", [demand()], world(n=1), NOW), Place)
    assert not runs.has_room("a", demand(), world(n=2), NOW)
    runs.leave("b")
    assert runs.has_room("a", demand(), world(n=2), NOW)


def test_it_shows_who_runs_waits_and_plans() -> None:
    runs = queue(("a", "ann", 0), ("b", "bob", 3), ("c", "cem", 0))
    one = world(n=1)
    runs.ask("a", [demand()], one, NOW)
    runs.ask("b", [demand()], one, NOW + 1)
    shown = runs.entries(one, NOW + 2)
    assert [(each.run, each.state, each.devices) for each in shown] == [
        ("run-a", "runs", "T4:1"),
        ("run-b", "waits", "T4:1"),
        ("run-c", "plans", ""),
    ]
    assert str(shown[1].place) == "place 1 of 1 in the queue: job-a of ann holds T4:1"
    assert runs.entries(replace(one, jobs=frozenset("b")), NOW + 3)[0].state == "waits"


SIZES = {"t": 4, "l": 2, "k": 2}
"""Devices of each node of the made-up cluster."""


@dataclass
class Run:
    """A made-up run, whose stages need devices for some seconds each."""

    job: str
    stages: list[tuple[Demand, int]]
    enters: int
    lease: Lease | None = None
    until: int = 0
    has_ended: bool = False


def made_up(number: int, dice: random.Random) -> Run:
    """A run that probes some placements, tries on one of them, and trains on it."""
    kinds = dice.sample("tlk", dice.randint(1, 3))
    probes = [(demand(1, kind), dice.randint(5, 40)) for kind in kinds]
    trials = demand(1, kinds[0], most=dice.randint(1, 4)), dice.randint(10, 60)
    fit = demand(dice.randint(1, SIZES[kinds[0]]), kinds[0]), dice.randint(20, 200)
    return Run(f"{number:08d}", [*probes, trials, fit], dice.randint(0, 60))


class Simulation:
    """Twenty runs of four owners on one cluster, some of whose drivers die."""

    def __init__(self, seed: int) -> None:
        self._dice, self.queue = random.Random(seed), DeviceQueue()
        self.runs = [made_up(number, self._dice) for number in range(20)]
        for number, run in enumerate(self.runs):
            owner, entered = f"owner-{number % 4}", NOW + run.enters
            self.queue.enter(run.job, Ticket(run.job, run.job, owner, 0, entered))
        self.waits: set[str] = set()
        """Nodes one device of which would let a run go on."""

    @property
    def going(self) -> list[Run]:
        return [run for run in self.runs if not run.has_ended]

    def step(self, second: int) -> None:
        """Let a driver die now and then, and all others go on, in any order."""
        if second % 97 == 96 and second < 600:
            dead = self._dice.choice(self.going)
            dead.has_ended, dead.lease = True, None
        slots = {slot(node): Capacity(size, size, 0.0) for node, size in SIZES.items()}
        there = World(slots, frozenset(run.job for run in self.going))
        present = [run for run in self.going if run.enters <= second]
        self.waits = set()
        for run in self._dice.sample(present, len(present)):
            if run.lease is None or second >= run.until:
                self._go_on(run, there, second)

    def _go_on(self, run: Run, there: World, second: int) -> None:
        if run.lease:
            run.lease, run.stages = None, run.stages[1:]
        if not run.stages:
            run.has_ended = True
            self.queue.leave(run.job)
            return
        wanted, lasts = run.stages[0]
        answer = self.queue.ask(run.job, [wanted], there, NOW + second)
        if isinstance(answer, Lease):
            run.lease, run.until = answer, second + lasts
        elif wanted.least == 1:
            self.waits |= set(wanted.nodes)

    def held(self, node: str) -> int:
        return sum(run.lease.slots.get(slot(node), 0) for run in self.runs if run.lease)


@pytest.mark.parametrize("seed", range(10))
def test_twenty_runs_of_four_owners_all_end_though_drivers_die(seed: int) -> None:
    """No device is leased twice, and none is idle while a run that could use it waits."""
    cluster = Simulation(seed)
    idle_s = dict.fromkeys(SIZES, 0)
    for second in range(20_000):
        cluster.step(second)
        for node, size in SIZES.items():
            held = cluster.held(node)
            assert held <= size
            idle_s[node] = idle_s[node] + 1 if held < size and node in cluster.waits else 0
            assert idle_s[node] <= 10, (node, second)
        if not cluster.going:
            return
    raise AssertionError(f"{len(cluster.going)} runs never end")
