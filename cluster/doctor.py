"""Judges facts about nodes: each finding says what is wrong and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.facts import GpuFacts, NodeFacts

LEAST_SHM_GIB = 1.0
"""Size of /dev/shm, which NCCL and Ray's object store use; containers get 0.06 by default."""
LEAST_DISK_GIB = 10.0
SLOW_DISK_MB_PER_S = 100.0
SKEW_S = 1.0
"""Largest clock difference; beyond it leases and the order of log lines become unreliable."""
BUSY_CPU, BUSY_GPU_GIB = 0.5, 1.0
"""Use by other processes above which measurements are unreliable: share of the CPUs, GPU GiB."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a node."""

    node: str
    severity: Severity
    message: str
    """What is wrong, and what to do."""


def examine(nodes: Sequence[NodeFacts], now_s: Sequence[float]) -> tuple[Finding, ...]:
    """Returns the findings on each node, and on differences between nodes.

    `now_s`: this machine's clock when each node's facts arrived, in seconds since 1970.
    """
    findings = [finding for node in nodes for finding in _on_node(node)]
    findings += _skews(nodes, now_s)
    findings += _versions(nodes)
    return tuple(findings)


def _on_node(node: NodeFacts) -> Iterator[Finding]:
    for message in _errors(node):
        yield Finding(node.node, "error", message)
    for message in _warnings(node):
        yield Finding(node.node, "warning", message)
    for index, gpu in enumerate(node.gpus):
        for message in _on_gpu(gpu):
            yield Finding(node.node, "warning", f"GPU {index}: {message}")


def _errors(node: NodeFacts) -> Iterator[str]:
    if node.gpus and node.torch_cuda is None:
        yield (
            f"torch is a build without CUDA, so {len(node.gpus)} GPUs stay idle; install a build"
            " with CUDA"
        )
    elif node.torch_cuda and node.driver_cuda and _is_older(node.driver_cuda, node.torch_cuda):
        yield (
            f"driver {node.driver} runs CUDA up to {node.driver_cuda}, torch needs"
            f" {node.torch_cuda}; update the driver or install an older build of torch"
        )
    if node.shm_gib < LEAST_SHM_GIB and len(node.gpus) > 1:
        yield (
            f"/dev/shm has {node.shm_gib:.2f} GiB, and NCCL needs about {LEAST_SHM_GIB:g}; give"
            " the container --shm-size=8g"
        )
    wanted = node.nccl_interface
    if wanted and not any(name in wanted.split(",") for name in node.interfaces):
        here = ", ".join(node.interfaces) or "none"
        yield f"NCCL_SOCKET_IFNAME is {wanted}, which is not up; set it to one that is: {here}"


def _warnings(node: NodeFacts) -> Iterator[str]:
    if node.disk_free_gib < LEAST_DISK_GIB:
        yield f"{node.disk_free_gib:.1f} GiB of disk are free; checkpoints may fill it"
    if node.disk_mb_per_s < SLOW_DISK_MB_PER_S:
        yield f"the disk reads {node.disk_mb_per_s:.0f} MB/s; checkpoints will be slow"
    if node.busy_cpu_share > BUSY_CPU:
        yield (
            f"other processes use {node.busy_cpu_share:.0%} of the CPUs, so measurements will be"
            " wrong; stop them"
        )


def _on_gpu(gpu: GpuFacts) -> Iterator[str]:
    if gpu.processes or gpu.used_gib > BUSY_GPU_GIB:
        yield (
            f"{gpu.processes} processes hold {gpu.used_gib:.1f} GiB, so measurements will be wrong"
            " and memory may run out; stop them"
        )
    if gpu.slowdowns:
        yield (
            f"its clock is reduced by {' and '.join(gpu.slowdowns)}; check the cooling and the"
            " power supply"
        )
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    if limit and default and limit < 0.95 * default:
        yield (
            f"its power limit is {limit:.0f} W instead of {default:.0f}, so it is slower than other"
            " GPUs of its model; raise it with `nvidia-smi -pl`"
        )
    if gpu.pcie_width and gpu.widest_pcie and gpu.pcie_width < gpu.widest_pcie:
        yield f"it uses {gpu.pcie_width} of {gpu.widest_pcie} PCIe lanes; check the slot and riser"
    if gpu.has_mig:
        yield "MIG is on, and Winnow uses only whole GPUs; switch it off or use another GPU"


def _skews(nodes: Sequence[NodeFacts], now_s: Sequence[float]) -> Iterator[Finding]:
    for node, now in zip(nodes, now_s, strict=True):
        off_s = node.clock_s - now
        if abs(off_s) > SKEW_S:
            yield Finding(
                node.node,
                "warning",
                f"its clock differs by {off_s:+.1f} s from this machine's; start chrony",
            )


def _versions(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yields package versions that differ from those of the first node."""
    for node in nodes[1:]:
        first = nodes[0]
        for name in sorted(first.versions.keys() & node.versions.keys()):
            if node.versions[name] != first.versions[name]:
                yield Finding(
                    node.node,
                    "error",
                    f"{name} is {node.versions[name]}, and {first.versions[name]} on {first.node};"
                    " install the same version on every node",
                )


def _is_older(version: str, wanted: str) -> bool:
    """Returns whether a driver's CUDA has an older major version, which torch cannot use."""
    return int(version.split(".")[0]) < int(wanted.split(".")[0])
