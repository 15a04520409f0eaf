"""SKUs under the names that people, drivers and Ray use."""

import pytest

from cluster import catalogue, nvml
from jobs.errors import InfeasibleError


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("RTX4090", "RTX4090"),
        ("rtx-4090", "RTX4090"),
        ("GeForce-RTX-3090", "RTX3090"),
        ("A100-80GB", "A100-80GB"),
        ("a100", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("CPU", "cpu"),
    ],
)
def test_names_resolve_to_one_sku(typed: str, name: str) -> None:
    assert catalogue.find(typed).name == name


@pytest.mark.parametrize(
    ("typed", "hint"), [("RTX4091", "did you mean RTX4090?"), ("zzz", "known: T4, V100-16GB")]
)
def test_unknown_names_suggest_the_nearest(typed: str, hint: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        catalogue.find(typed)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("product", "memory_gib", "name"),
    [
        ("Tesla V100-PCIE-16GB", 15.8, "V100-16GB"),
        ("Tesla V100-DGXS-32GB", 31.7, "V100-32GB"),
        ("NVIDIA A100-PG509-200", 39.4, "A100-40GB"),
        ("NVIDIA H200", 139.8, "H200"),
        ("Quadro P400", 2.0, None),
    ],
)
def test_drivers_product_names_are_told_apart_by_memory(
    product: str, memory_gib: float, name: str | None
) -> None:
    assert nvml.match_sku(product, memory_gib) == name


def test_every_fact_has_its_source() -> None:
    for sku in catalogue.catalogue().values():
        assert sku.name == catalogue.CPU or sku.spec_source
        assert (sku.price_usd_per_hour is None) == (sku.price_source is None)


def test_auto_precision_follows_what_is_native() -> None:
    chosen = {sku: catalogue.auto_precision(catalogue.find(sku))[0] for sku in ("T4", "L4", "cpu")}
    assert chosen == {"T4": "fp16", "L4": "bf16", "cpu": "fp32"}
