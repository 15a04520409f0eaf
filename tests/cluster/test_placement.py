"""Finding nodes for a request, and the inventory they come from."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cluster.inventory import Inventory, Node, read_inventory, sort_out
from cluster.placement import place
from jobs.errors import ClusterError, InfeasibleError
from jobs.spec.quantities import AcceleratorRequest
from tests.builders import inventory


def test_a_placement_names_all_nodes_of_its_sku() -> None:
    nodes = Inventory((Node("a", "T4", 2), Node("b", "T4", 2), Node("c", "L4", 4)))
    placement = place(AcceleratorRequest("t4", 4), nodes, {"T4": 0.5})
    assert placement.node_ids == ("a", "b")
    assert (placement.name, placement.price_usd_per_hour) == ("T4:4", 2.0)
    assert placement.device == "cuda"


@pytest.mark.parametrize(
    ("request_", "closest"),
    [
        (AcceleratorRequest("T4", 4), "closest is T4:2"),
        (AcceleratorRequest("A100-80GB", 1), "closest is L40S:1"),
        (AcceleratorRequest("V100-16GB", 8), "closest is T4:2"),
    ],
)
def test_what_is_missing_comes_with_the_nearest_alternative(
    request_: AcceleratorRequest, closest: str
) -> None:
    with pytest.raises(InfeasibleError, match="no nodes for") as caught:
        place(request_, inventory(T4=2, L40S=1), {})
    assert closest in str(caught.value)


def test_an_empty_cluster_says_how_to_start_one() -> None:
    with pytest.raises(InfeasibleError, match="winnow up"):
        place(AcceleratorRequest("T4"), Inventory(()), {})


def test_a_cluster_of_unknown_accelerators_says_what_it_has() -> None:
    nodes = sort_out([Node("a", "Quadro P400", 1)])
    with pytest.raises(
        InfeasibleError, match=r"has 1 x Quadro P400 \(not known\); start a cluster"
    ):
        place(AcceleratorRequest("T4"), nodes, {})


def test_simulated_and_cpu_placements_train_on_the_cpu() -> None:
    pretended = Inventory((Node("a", "T4", 1, simulated=True),))
    assert place(AcceleratorRequest("T4"), pretended, {}).device == "cpu"
    cores = Inventory((Node("a", "cpu", 4, memory_gib=16.0),))
    placement = place(AcceleratorRequest("cpu", 2), cores, {})
    assert (placement.device, placement.memory_gib) == ("cpu", 8.0)


def test_an_inventory_file_takes_names_as_people_type_them(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text('{"nodes": [{"id": "a", "sku": "rtx 4090", "devices": 2}]}', encoding="utf-8")
    found = read_inventory(path)
    assert found.counts() == {"RTX4090": 2}
    kept = TypeAdapter(Inventory)
    assert kept.validate_json(kept.dump_json(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid at"), ('{"nodes": [{"id": "a"}]}', "nodes.0"), ("[]", "not valid")],
)
def test_a_bad_inventory_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        read_inventory(path)
    assert message in str(caught.value)


def test_a_missing_inventory_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read"):
        read_inventory(tmp_path / "none.json")
