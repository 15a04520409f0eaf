"""Measures the rates of devices: matrix products, memory, host link and all-reduce."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.events import HardwareMeasured, Report, WorkersReady
from jobs.training.model.precision import set_matmul_precision
from jobs.training.world import World, join

MATRIX = {"cuda": 8192, "cpu": 1536}
"""Rows and columns of the square matrices: large enough that arithmetic limits the rate."""
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Bytes of a copy within memory: far more than any cache holds."""
SENT_BYTES = 2**28
"""Bytes of a copy to the device, and of an all-reduce."""
WARMUP_S, TIMED_S = 0.5, 2.0
"""Duration of the warm-up and of the timing of each operation."""
TYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class HardwareRequest:
    """The measurements to make on every worker of a group."""

    device: Device
    precisions: Sequence[Precision]


def measure(request: HardwareRequest, report: Report) -> None:
    """Measures each rate; the main worker reports the rates of the slowest worker."""
    with join(request.device) as world:
        if world.is_main:
            report(WorkersReady())
        tflops = {precision: _matrix(world, precision) for precision in request.precisions}
        found = HardwareMeasured(
            workers=world.size,
            tflops=tflops,
            bandwidth_gb_per_s=_bandwidth(world),
            host_gb_per_s=_host(world) if request.device == "cuda" else None,
            all_reduce_gb_per_s=_all_reduce(world) if world.size > 1 else None,
        )
        if world.is_main:
            report(found)


def _matrix(world: World, precision: Precision) -> float:
    """Returns the rate of dense matrix products in TFLOP/s, 2n³ each, on random data."""
    set_matmul_precision(precision)
    size = MATRIX[world.device.type]
    left, right = (
        torch.randn(size, size, device=world.device, dtype=TYPES[precision]) for _ in range(2)
    )
    out = torch.empty_like(left)
    return 2 * size**3 / _seconds(world, lambda: torch.mm(left, right, out=out)) / 1e12


def _bandwidth(world: World) -> float:
    """Returns the memory bandwidth of a copy in GB/s, bytes read plus written."""
    size = COPIED_BYTES[world.device.type]
    source = torch.ones(size, dtype=torch.uint8, device=world.device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(world, lambda: target.copy_(source)) / 1e9


def _host(world: World) -> float:
    """Returns the bandwidth from pinned host memory to the device in GB/s."""
    source = torch.ones(SENT_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(SENT_BYTES, dtype=torch.uint8, device=world.device)
    return SENT_BYTES / _seconds(world, lambda: target.copy_(source, non_blocking=True)) / 1e9


def _all_reduce(world: World) -> float:
    """Returns the bus bandwidth of an all-reduce in GB/s: 2(n-1)/n of the bytes, as nccl-tests."""
    values = torch.zeros(SENT_BYTES // 4, device=world.device)
    share = 2 * (world.size - 1) / world.size
    return share * SENT_BYTES / _seconds(world, lambda: dist.all_reduce(values)) / 1e9


def _seconds(world: World, work: Callable[[], object]) -> float:
    """Returns the mean seconds of an operation on the slowest worker.

    All workers repeat it equally often.
    """
    _wait(world)
    begin, count = time.perf_counter(), 0
    while world.broadcast(value=time.perf_counter() - begin < WARMUP_S):
        work()
        _wait(world)
        count += 1
    each_s = world.broadcast(value=(time.perf_counter() - begin) / max(1, count))
    count = max(3, int(TIMED_S / each_s))
    begin = time.perf_counter()
    for _ in range(count):
        work()
    _wait(world)
    return world.all_reduce_max((time.perf_counter() - begin) / count)


def _wait(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
