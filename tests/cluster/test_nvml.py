"""What NVML says of GPUs, with a driver that answers as the one of a GPU does."""

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest

from cluster import nvml
from jobs import nvml as queries
from jobs.training.probing import environment

GIB = 2**30
READING = "nvmlDeviceGetCurrentClocksThrottleReasons"


def unsupported(*_: object) -> None:
    """Answers as a GPU that lacks a sensor."""
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives this machine one GPU with a name; other answers replace those of a plain one."""

    def act(name: str, **answers: Callable[..., object]) -> None:
        plain = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda _: name,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * GIB),
            "nvmlDeviceGetMigMode": unsupported,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 300_000,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        }
        for function, answer in {**plain, **answers}.items():
            monkeypatch.setattr(pynvml, function, answer)

    return act


@pytest.mark.parametrize(
    ("name", "has_mig", "sku"),
    [
        ("NVIDIA A100-SXM4-80GB", False, "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", True, "A100-80GB divided by MIG"),
        ("Quadro P400", False, "Quadro P400"),
        ("NVIDIA X9", True, "NVIDIA X9 divided by MIG"),
    ],
)
def test_a_gpu_has_its_sku_or_its_own_name(
    name: str,
    has_mig: bool,  # noqa: FBT001
    sku: str,
    gpu: Callable[..., None],
) -> None:
    gpu(name, nvmlDeviceGetMigMode=lambda _: (int(has_mig), 0))
    assert nvml.detect_sku() == sku


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", unsupported)
    assert nvml.detect_sku() is None
    assert environment._gpu() == {"processor": "unknown", "driver": "unknown"}


def test_values_that_a_gpu_does_not_report_are_left_out(gpu: Callable[..., None]) -> None:
    gpu("Tesla T4")
    whole = {"processor": "Tesla T4", "driver": "580.1", "power_limit_w": "300", "pcie_lanes": "16"}
    assert environment._gpu() == whole
    gpu("Tesla T4", nvmlDeviceGetEnforcedPowerLimit=unsupported)
    assert environment._gpu() == {k: v for k, v in whole.items() if k != "power_limit_w"}


@pytest.mark.parametrize(
    ("reasons", "words"),
    [(0x04, ()), (0x24, ("heat",)), (0x88, ("the power supply", "the hardware"))],
)
def test_the_power_limit_is_no_slowdown(
    reasons: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, READING, lambda _: reasons)
    assert queries.slowdowns(0) == words


def test_slowdowns_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, READING, unsupported)
    assert queries.slowdowns(0) is None
