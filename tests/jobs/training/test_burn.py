"""The hardware benchmark on the machine at hand: plausible rates for every precision."""

from collections.abc import Callable

import pytest

from jobs.training.events import Event, HardwareMeasured, WorkersReady
from jobs.training.probing import hardware_benchmark


def test_a_cpu_s_rates_are_measured_by_doing_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "WARMUP_S", 0.05)
    monkeypatch.setattr(hardware_benchmark, "TIMED_S", 0.2)
    # a CPU that has no bf16 reaches a thousandth of what one has that does
    monkeypatch.setattr(hardware_benchmark, "MATRIX", {"cpu": 256})
    events: list[Event] = []
    hardware_benchmark.measure(
        hardware_benchmark.HardwareRequest("cpu", ("fp32", "bf16")), events.append
    )
    joined, found = events
    assert isinstance(joined, WorkersReady)
    assert isinstance(found, HardwareMeasured)
    assert set(found.tflops) == {"fp32", "bf16"}
    assert all(0.0001 < rate < 100 for rate in found.tflops.values())
    assert 0.5 < found.bandwidth_gb_per_s < 2000
    assert (found.workers, found.host_gb_per_s, found.all_reduce_gb_per_s) == (1, None, None)


def test_rates_follow_from_time_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that takes a tenth of a second, by a clock of the test's own."""

    def seconds(world: object, work: Callable[[], object]) -> float:
        work()
        return 0.1

    monkeypatch.setattr(hardware_benchmark, "_seconds", seconds)
    monkeypatch.setattr(hardware_benchmark, "MATRIX", {"cpu": 100})
    monkeypatch.setattr(hardware_benchmark, "COPIED_BYTES", {"cpu": 1000})
    events: list[Event] = []
    hardware_benchmark.measure(hardware_benchmark.HardwareRequest("cpu", ("fp32",)), events.append)
    found = events[-1]
    assert isinstance(found, HardwareMeasured)
    assert found.tflops["fp32"] == pytest.approx(2e6 / 0.1 / 1e12)
    assert found.bandwidth_gb_per_s == pytest.approx(2000 / 0.1 / 1e9)
