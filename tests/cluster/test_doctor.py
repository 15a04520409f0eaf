"""What the doctor finds on nodes, and what it leaves alone."""

from dataclasses import replace

import pytest

from cluster import facts
from cluster.doctor import examine
from cluster.facts import GpuFacts, NodeFacts

GPU = GpuFacts(
    name="NVIDIA L40S",
    memory_gib=45.0,
    used_gib=0.4,
    processes=0,
    slowdowns=(),
    power_limit_w=350.0,
    default_power_limit_w=350.0,
    pcie_width=16,
    widest_pcie=16,
    has_mig=False,
)
NODE = NodeFacts(
    node="gpu-1",
    clock_s=1000.0,
    versions={"torch": "2.13.0", "ray": "2.60.0"},
    torch_cuda="13.0",
    driver="580.159",
    driver_cuda="13.0",
    gpus=(GPU, GPU),
    shm_gib=8.0,
    disk_free_gib=200.0,
    disk_mb_per_s=900.0,
    interfaces=("eth0",),
    nccl_interface=None,
    busy_cpu_share=0.03,
)


def found(node: NodeFacts) -> list[tuple[str, str]]:
    """Findings on one node."""
    return [(finding.severity, finding.message) for finding in examine([node], [node.clock_s])]


def test_a_good_node_has_no_findings() -> None:
    assert found(NODE) == []


@pytest.mark.parametrize(
    ("fields", "severity", "words"),
    [
        ({"torch_cuda": None}, "error", "2 GPUs stay idle"),
        (
            {"driver_cuda": "12.4", "driver": "550.54"},
            "error",
            "driver 550.54 runs CUDA up to 12.4",
        ),
        ({"shm_gib": 0.06}, "error", "--shm-size"),
        ({"disk_free_gib": 2.0}, "warning", "2.0 GiB of disk are free"),
        ({"disk_mb_per_s": 20.0}, "warning", "reads 20 MB/s"),
        ({"busy_cpu_share": 0.8}, "warning", "80% of the CPUs"),
        ({"nccl_interface": "ib0"}, "error", "ib0, which is not up; set it to one that is: eth0"),
    ],
)
def test_what_is_wrong_with_a_node_is_told_with_a_remedy(
    fields: dict[str, object], severity: str, words: str
) -> None:
    ((how_bad, message),) = found(replace(NODE, **fields))
    assert how_bad == severity
    assert words in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"processes": 2, "used_gib": 20.0}, "2 processes hold 20.0 GiB"),
        ({"slowdowns": ("heat",)}, "clock is reduced by heat"),
        ({"power_limit_w": 200.0}, "200 W instead of 350"),
        ({"pcie_width": 4}, "4 of 16 PCIe lanes"),
        ({"has_mig": True}, "MIG is on"),
    ],
)
def test_what_is_wrong_with_a_gpu_names_it(fields: dict[str, object], words: str) -> None:
    ((severity, message),) = found(replace(NODE, gpus=(GPU, replace(GPU, **fields))))
    assert severity == "warning"
    assert message.startswith("GPU 1: ")
    assert words in message


def test_a_driver_of_the_same_major_version_runs_newer_builds() -> None:
    assert found(replace(NODE, driver_cuda="13.1", torch_cuda="13.2")) == []


def test_nodes_that_differ_are_told_apart() -> None:
    other = replace(NODE, node="gpu-2", versions={**NODE.versions, "torch": "2.11.0"})
    findings = examine([NODE, other], [1000.0, 997.0])
    assert [(f.node, f.severity) for f in findings] == [("gpu-2", "warning"), ("gpu-2", "error")]
    assert "+3.0 s" in findings[0].message
    assert "torch is 2.11.0, and 2.13.0 on gpu-1" in findings[1].message


def test_this_machine_s_facts_are_real() -> None:
    here = facts.gather()
    assert here.versions["torch"]
    assert here.disk_free_gib > 0
    assert here.disk_mb_per_s > 1
    assert 0 <= here.busy_cpu_share <= 1
