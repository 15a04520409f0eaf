"""Gathers facts about a node: driver, GPUs, disk, shared memory, clock."""

import importlib.util
import os
import platform
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pynvml

from jobs import nvml

READ_BYTES = 2**26
"""Size of the file that is written and read back to measure the disk."""
PACKAGES = ("torch", "transformers", "ray", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""Packages whose versions must be equal on all nodes."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The state of one GPU, from NVML."""

    name: str
    memory_gib: float
    used_gib: float
    processes: int
    """Number of compute processes on it now."""
    slowdowns: tuple[str, ...]
    """Reasons why its clock is reduced now."""
    power_limit_w: float | None
    default_power_limit_w: float | None
    pcie_width: int | None
    """PCIe lanes in use."""
    widest_pcie: int | None
    """PCIe lanes that it supports."""
    has_mig: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The state of one node."""

    node: str
    """Host name."""
    clock_s: float
    """Its clock in seconds since 1970, when the facts were gathered."""
    versions: dict[str, str]
    torch_cuda: str | None
    """CUDA version that torch was built for; None for a build without CUDA."""
    driver: str | None
    """Driver version; None without an NVIDIA driver."""
    driver_cuda: str | None
    """Newest CUDA version that the driver supports."""
    gpus: tuple[GpuFacts, ...]
    shm_gib: float
    """Size of /dev/shm."""
    disk_free_gib: float
    disk_mb_per_s: float
    """Speed of reading a new file, after its pages were dropped from the cache."""
    interfaces: tuple[str, ...]
    """Network interfaces that are up, without loopback."""
    nccl_interface: str | None
    """Value of NCCL_SOCKET_IFNAME."""
    busy_cpu_share: float


def gather() -> NodeFacts:
    """Returns the facts of this machine; takes about a second."""
    driver, driver_cuda, gpus = _nvidia()
    folder = Path(tempfile.gettempdir())
    disk_mb_per_s, busy = _disk_mb_per_s(folder), psutil.cpu_percent(interval=0.5) / 100
    return NodeFacts(
        node=platform.node(),
        clock_s=time.time(),
        versions=_versions(),
        torch_cuda=_torch_cuda(),
        driver=driver,
        driver_cuda=driver_cuda,
        gpus=gpus,
        shm_gib=_size_gib(Path("/dev/shm")),
        disk_free_gib=shutil.disk_usage(folder).free / 2**30,
        disk_mb_per_s=disk_mb_per_s,
        interfaces=tuple(
            sorted(
                name
                for name, stats in psutil.net_if_stats().items()
                if stats.isup and not name.startswith("lo")
            )
        ),
        nccl_interface=os.environ.get("NCCL_SOCKET_IFNAME"),
        busy_cpu_share=busy,
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _torch_cuda() -> str | None:
    """Reads torch's version file, because importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b.*?=\s*'([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def _size_gib(path: Path) -> float:
    return shutil.disk_usage(path).total / 2**30 if path.is_dir() else 0.0


def _disk_mb_per_s(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder) as handle:
        handle.write(os.urandom(2**20) * (READ_BYTES // 2**20))
        handle.flush()
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        handle.seek(0)
        while handle.read(2**22):
            pass
        return READ_BYTES / (time.perf_counter() - begin) / 1e6


def _nvidia() -> tuple[str | None, str | None, tuple[GpuFacts, ...]]:
    with nvml.library() as is_there:
        if not is_there:
            return None, None, ()
        newest = pynvml.nvmlSystemGetCudaDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
        gpus = tuple(_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count))
        cuda = f"{newest // 1000}.{newest % 1000 // 10}"
        return str(pynvml.nvmlSystemGetDriverVersion()), cuda, gpus


def _gpu(handle: Any) -> GpuFacts:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    milliwatt = nvml.query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    default = nvml.query(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    mig = nvml.query(pynvml.nvmlDeviceGetMigMode, handle)
    return GpuFacts(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_gib=memory.total / 2**30,
        used_gib=memory.used / 2**30,
        processes=len(nvml.query(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()),
        slowdowns=nvml.slowdowns(handle) or (),
        power_limit_w=milliwatt / 1000 if milliwatt else None,
        default_power_limit_w=default / 1000 if default else None,
        pcie_width=nvml.query(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        widest_pcie=nvml.query(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        has_mig=bool(mig and mig[0]),
    )
