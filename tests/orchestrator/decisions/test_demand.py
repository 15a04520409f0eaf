"""What Ray's autoscaler is asked for."""

from typing import Any

from cluster.inventory import Inventory, Node
from cluster.placement import Placement
from cluster.prices import PriceBook, Quote
from jobs.spec.resources import PlacementSpec
from orchestrator.decisions import demand
from orchestrator.decisions.demand import Bundle
from tests.builders import job


def placement(accelerators: str, **fields: Any) -> PlacementSpec:
    return PlacementSpec.model_validate({"accelerators": accelerators, **fields})


def test_placements_on_one_kind_of_node_share_their_devices() -> None:
    found = demand.bundles([placement("T4:1"), placement("T4:2"), placement("L40S:1", spot=True)])
    t4 = Bundle({"CPU": 1, "GPU": 1}, {"winnow.io/sku": "T4"})
    spot = {"winnow.io/sku": "L40S", "ray.io/market-type": "spot"}
    assert found == (t4, t4, Bundle({"CPU": 1, "GPU": 1}, spot))
    (core,) = demand.bundles([placement("cpu:1", spot=False)])
    assert core == Bundle({"CPU": 1}, {"ray.io/market-type": "!spot"})


def test_placements_in_order_are_asked_for_one_after_the_other() -> None:
    listed = [{"accelerators": "T4:1"}, {"accelerators": "L40S:1"}]
    serve = {"route": "/a", "accelerators": "cpu:1"}
    ordered = job(resources={"ordered": listed}, serve=serve)
    names = [[str(one.accelerators) for one in group] for group in demand.wanted(ordered)]
    assert names == [["T4:1", "cpu:1"], ["L40S:1", "cpu:1"]]
    together = job(resources={"any_of": listed}, serve=serve)
    ((*group,),) = demand.wanted(together)
    assert [str(one.accelerators) for one in group] == ["T4:1", "L40S:1", "cpu:1"]
    chosen = Placement("L40S", 1, ("a",), 48.0, None, spot=True)
    ((winner, served),) = demand.wanted(together, chosen)
    assert (str(winner.accelerators), winner.spot, str(served.accelerators)) == (
        "L40S:1",
        True,
        "cpu:1",
    )


def test_what_is_too_dear_on_any_market_is_not_asked_for() -> None:
    listed = [
        {"accelerators": "T4:1"},
        {"accelerators": "T4:4"},
        {"accelerators": "T4:2", "spot": False},
        {"accelerators": "MI300X:1"},
    ]
    resources = {"any_of": listed, "max_hourly_cost": 1.1}
    spec = job(resources=resources, prices={"T4": 0.6, "MI300X": 1.0})
    ((*group,),) = demand.wanted(spec)
    assert [str(one.accelerators) for one in group] == ["T4:1", "MI300X:1"]
    spot = PriceBook({"T4": Quote("T4", 0.6, 0.25, "somebody", "today")})
    cheaper = job(resources=resources, prices={"MI300X": 1.0})
    ((*group,),) = demand.wanted(cheaper, book=spot)
    assert [str(one.accelerators) for one in group] == ["T4:1", "T4:4", "MI300X:1"]


def test_what_is_there_lacks_nothing() -> None:
    nodes = Inventory((Node("a", "T4", 2), Node("b", "T4", 2, spot=True), Node("c", "cpu", 4)))
    spot = placement("T4:4", spot=True)
    wanted = [placement("T4:4"), spot, placement("L40S"), placement("cpu:4")]
    missing = demand.lacking(wanted, nodes)
    assert [(str(one.accelerators), one.spot) for one in missing] == [
        ("T4:4", True),
        ("L40S:1", None),
    ]
