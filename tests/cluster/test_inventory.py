"""Which nodes are meant, and which are left out."""

import json
from pathlib import Path

import pytest

from cluster import labels
from cluster.inventory import Inventory, Node, read_inventory, selector, sort_out
from jobs.errors import ClusterError


def test_a_label_means_every_node_that_has_it_and_ids_only_these() -> None:
    known, like_it = Node("a", "T4", 2, labelled=True), Node("b", "T4", 1, labelled=True)
    asked = Node("c", "T4", 1)
    assert selector((known, like_it)) == {labels.SKU: "T4"}
    assert selector((known, asked)) == {labels.NODE_ID: "in(a,c)"}
    assert selector((Node("d", "cpu", 4),)) == {labels.SIMULATED: "!true"}


def found(*nodes: Node) -> Inventory:
    """The inventory of a T4 and further nodes."""
    return sort_out((Node("known", "tesla-t4", 1), *nodes))


@pytest.mark.parametrize(
    ("sku", "sentence"),
    [
        ("Quadro P400", "Quadro P400 of node a is left out, because no accelerator of that name"),
        ("unknown GPU", "write a name that `winnow hardware` lists as the node's sku, or in its"),
        ("A100-80GB divided by MIG", "A100-80GB divided by MIG of node a is left out"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "turn MIG off there with `nvidia-smi -mig 0`"),
    ],
)
def test_a_node_that_the_catalogue_does_not_know_is_left_out_with_a_sentence(
    sku: str, sentence: str
) -> None:
    inventory = found(Node("a", sku, 2))
    assert inventory.counts() == {"T4": 1}
    assert str(inventory) == f"1 x T4, 2 x {sku} (not known)"
    ((name, told),) = inventory.left_out().items()
    assert name == f"{sku}:2"
    assert sentence in told


def test_nodes_of_one_unknown_model_share_a_sentence() -> None:
    inventory = found(*(Node(f"n{index}", "P100", 8) for index in range(6)))
    ((name, told),) = inventory.left_out().items()
    assert name == "P100:48"
    assert told.startswith("P100 of nodes n0, n1, n2, n3 and 2 more is left out")


def test_a_file_is_read_with_unknown_models_and_names_that_fit_several(tmp_path: Path) -> None:
    rows = [{"id": sku, "sku": sku, "devices": 1} for sku in ("A100", "RTX9999", "T4")]
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": rows}), encoding="utf-8")
    inventory = read_inventory(tmp_path / "nodes.json")
    assert [node.sku for node in inventory.nodes] == ["A100-40GB", "T4"]
    assert [node.id for node in inventory.unknown] == ["RTX9999"]
    assert inventory.remarks == (
        "A100 selects A100-40GB; write A100-80GB if you mean another model",
    )


@pytest.mark.parametrize("devices", [0, -2])
def test_a_file_with_a_node_without_devices_is_refused(devices: int, tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"nodes": [{"id": "a", "sku": "T4", "devices": devices}]}))
    with pytest.raises(ClusterError, match=r"not valid at nodes\.0\.devices: .* greater than 0"):
        read_inventory(path)
