"""Which nodes are meant."""

from cluster import labels
from cluster.inventory import Node, selector


def test_a_label_means_every_node_that_has_it_and_ids_only_these() -> None:
    known, like_it = Node("a", "T4", 2, labelled=True), Node("b", "T4", 1, labelled=True)
    asked = Node("c", "T4", 1)
    assert selector((known, like_it)) == {labels.SKU: "T4"}
    assert selector((known, asked)) == {labels.NODE_ID: "in(a,c)"}
    assert selector((Node("d", "cpu", 4),)) == {labels.SIMULATED: "!true"}
