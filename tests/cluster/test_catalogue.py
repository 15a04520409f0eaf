"""SKUs under the names that people, drivers and Ray use."""

import pytest

from cluster import catalogue, nvml
from jobs.errors import InfeasibleError
from jobs.spec.train import Precision
from tests.builders import any_of, job


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
        ("A100-40G", "A100-40GB"),
        ("A100-80G", "A100-80GB"),
        ("NVIDIA-A100-80GB-SXM4", "A100-80GB"),
        ("AMD-Instinct-MI300X-OAM", "MI300X"),
    ],
)
def test_names_resolve_to_one_sku(typed: str, name: str) -> None:
    assert catalogue.find(typed).name == name


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("RTX4091", "did you mean RTX4090?"),
        ("T5", "did you mean T4?"),
        ("zzz", "known: T4, V100-16GB"),
        ("GTX1080", "known: T4, V100-16GB"),
    ],
)
def test_unknown_names_suggest_the_nearest(typed: str, hint: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        catalogue.find(typed)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("A100", "A100 selects A100-40GB; write A100-80GB if you mean another model"),
        ("Tesla V100", "Tesla V100 selects V100-32GB; write V100-16GB if you mean another model"),
        ("h100", "h100 selects H100-SXM; write H100-PCIe if you mean another model"),
        ("H100-80GB", "H100-80GB selects H100-SXM; write H100-PCIe if you mean another model"),
        ("A100-80", None),
        ("H100-SXM", None),
        ("A10", None),
        ("L4", None),
        ("T9", None),
    ],
)
def test_a_name_that_fits_several_skus_is_told(typed: str, sentence: str | None) -> None:
    assert catalogue.choice(typed) == sentence


def test_every_written_name_of_a_job_is_looked_at_once() -> None:
    spec = job(
        resources__any_of=any_of("A100:1", "A100:2"),
        serve={"route": "/a", "accelerators": "H100", "fallback": ["V100"]},
        prices={"h100": 2.0},
        owned={"v100": {"purchase": 900.0}},
    )
    taken = [sentence.split()[0] for sentence in catalogue.choices(spec)]
    assert taken == ["A100", "H100", "V100", "h100", "v100"]


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


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("A100-80GB", "tf32", 156.0),
        ("A100-80GB", "bf16", 312.0),
        ("A100-80GB", "fp32", 19.5),
        ("H100-SXM", "tf32", 494.5),
        ("V100-32GB", "tf32", 15.7),
        ("cpu", "tf32", None),
        ("GTX1080", "tf32", None),
    ],
)
def test_the_peak_is_the_one_of_the_precision(
    name: str, precision: Precision, tflops: float | None
) -> None:
    """The figures of the makers' data sheets, dense; a V100 has no tf32 and computes in fp32."""
    assert catalogue.peak_tflops(name, precision) == tflops
