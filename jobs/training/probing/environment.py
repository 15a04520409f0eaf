"""Describes the versions and the hardware for which a measurement is valid."""

import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path

import pynvml
import torch

from jobs import nvml
from jobs.training.config import Device

PACKAGES = ("torch", "transformers", "ray")
"""Packages whose versions change the speed of training."""


def describe(device: Device) -> dict[str, str]:
    """Returns software versions, a digest of this package's code, and the processor that trains.

    The result is the same in a worker with a device and in a worker of the same node without one.
    """
    found = {name: metadata.version(name) for name in PACKAGES if _is_installed(name)}
    found |= {"python": platform.python_version(), "code": code_digest()}
    if device == "cpu":
        return found | {"processor": _processor()}
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return found | {"cuda": str(torch.version.cuda), "nccl": nccl, **_gpu()}


def code_digest() -> str:
    """Returns `digest_of` the source that trains: ours of `jobs`."""
    return digest_of(Path(__file__).parents[2])


@functools.cache
def digest_of(folder: Path) -> str:
    """Returns the first 12 characters of the SHA-256 of a folder's Python source."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.processor() or "unknown"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _gpu() -> dict[str, str]:
    """Returns what NVML reports of the first GPU; not every GPU reports every value."""
    with nvml.library() as is_available:
        handle = nvml.query(pynvml.nvmlDeviceGetHandleByIndex, 0) if is_available else None
        if handle is None:
            return {"processor": "unknown", "driver": "unknown"}
        milliwatt = nvml.query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        found = {
            "processor": nvml.query(pynvml.nvmlDeviceGetName, handle) or "unknown",
            "driver": nvml.query(pynvml.nvmlSystemGetDriverVersion) or "unknown",
            "power_limit_w": None if milliwatt is None else milliwatt // 1000,
            "pcie_lanes": nvml.query(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        }
    return {name: str(value) for name, value in found.items() if value is not None}
