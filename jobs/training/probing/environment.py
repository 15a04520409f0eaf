"""Describes the versions and the hardware for which a measurement is valid."""

import contextlib
import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path

import pynvml
import torch

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


@functools.cache
def code_digest() -> str:
    """Returns the first 12 characters of the SHA-256 of the source that trains: ours of `jobs`."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
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
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found = {
            "processor": str(pynvml.nvmlDeviceGetName(handle)),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        }
    except pynvml.NVMLError:
        return {"processor": "unknown", "driver": "unknown"}
    with contextlib.suppress(pynvml.NVMLError):  # not every GPU reports them
        found["power_limit_w"] = str(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000)
        found["pcie_lanes"] = str(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    return found
