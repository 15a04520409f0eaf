"""What a measurement holds for: versions and hardware of the worker that took it."""

import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path

import pynvml
import torch

PACKAGES = ("torch", "transformers", "ray")
"""Packages whose versions change how fast training is."""


def describe(device: torch.device) -> dict[str, str]:
    """Software versions, a digest of this package's code, and the processor that trains."""
    found = {name: metadata.version(name) for name in PACKAGES if _is_installed(name)}
    found |= {"python": platform.python_version(), "code": code_digest()}
    if device.type == "cpu":
        return found | {"processor": _processor()}
    name = torch.cuda.get_device_name(device)
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    cuda = {"cuda": str(torch.version.cuda), "nccl": nccl}
    return found | cuda | {"processor": name, "driver": _driver()}


@functools.cache
def code_digest() -> str:
    """SHA-256 over the source of this package, shortened."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
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


def _driver() -> str:
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "unknown"
