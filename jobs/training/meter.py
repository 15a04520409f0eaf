"""Measures the speed of training and the use of the hardware."""

import dataclasses
import os
import platform
import threading
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch

from jobs import nvml
from jobs.training.events import Metered, Stepped
from jobs.training.session import Session

SAMPLE_S = 0.5
"""Interval between readings of utilisation and power."""


@dataclass(slots=True)
class Meter:
    """Collects results of steps; with a GPU, `gauge` reads it in a thread."""

    session: Session
    results: list[Stepped] = field(default_factory=list)
    gauge: "Gauge | None" = None
    wall_s: float = 0.0
    _begin: "_Usage" = field(init=False)

    def __enter__(self) -> "Meter":
        self._begin = _Usage.now()
        if self.session.world.device.type == "cuda":
            self.gauge = Gauge(self.session.world.device)
            self.gauge.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.gauge:
            self.gauge.stopped.set()

    def measured(self) -> Metered:
        """Returns the speed of all steps so far; every worker must call this."""
        session, engine = self.session, self.session.engine
        seconds = np.array([result.seconds for result in self.results])
        total = float(seconds.sum()) or float("nan")
        tokens = sum(result.tokens for result in self.results)
        padded = sum(result.padded_tokens for result in self.results)
        p50, p95, p99 = np.quantile(seconds, (0.5, 0.95, 0.99)) if len(seconds) else (0.0,) * 3
        return Metered(
            mode=engine.mode,
            steps=len(self.results),
            wall_s=self.wall_s,
            samples_per_s=sum(result.samples for result in self.results) / total,
            tokens_per_s=tokens / total,
            padded_tokens_per_s=padded / total,
            padding_share=1 - tokens / max(1, padded),
            step_s_p50=float(p50),
            step_s_p95=float(p95),
            step_s_p99=float(p99),
            capture_s=engine.capture_s,
            data_wait_share=engine.step.loader.waited_s / total,
            communication_share=engine.communication_share(
                session.world.broadcast(value=float(p50))
            ),
            peak_memory_gib=session.world.all_reduce_max(peak_memory_gib(session.world.device)),
            gpu_utilization=self.gauge.mean("utilization") if self.gauge else None,
            power_w=self.gauge.mean("power_w") if self.gauge else None,
            mfu=self._mfu(total),
            throttled_share=self.gauge.mean("throttled") if self.gauge else None,
            others_cpu_share=self._others(),
        )

    def with_memory(self, speed: Metered) -> Metered:
        """Returns `speed` with the current peak of memory; every worker must call this."""
        world = self.session.world
        return dataclasses.replace(
            speed, peak_memory_gib=world.all_reduce_max(peak_memory_gib(world.device))
        )

    def _others(self) -> float:
        """Returns the share of this node's processors that neither the workers nor Ray used."""
        now, host = _Usage.now(), platform.node()
        own = self.session.world.gather((host, now.own_s - self._begin.own_s))
        ours = sum(seconds for name, seconds in own if name == host)
        ours += now.cluster_s - self._begin.cluster_s
        whole = now.whole_s - self._begin.whole_s
        return max(0.0, (now.busy_s - self._begin.busy_s - ours) / whole) if whole else 0.0

    def _mfu(self, seconds: float) -> float | None:
        peak = self.session.config.peak_tflops
        if peak is None:
            return None
        weights, attention = flops_per_token(self.session)
        flops = sum(
            result.tokens * (weights + attention * result.padded_tokens / result.samples)
            for result in self.results
        )
        return flops / seconds / (peak * 1e12 * self.session.world.size)


@dataclass(frozen=True, slots=True)
class _Usage:
    """Processor seconds so far: of the node, busy ones, of this process, and of Ray."""

    whole_s: float
    busy_s: float
    own_s: float
    cluster_s: float

    @classmethod
    def now(cls) -> "_Usage":
        node, own = psutil.cpu_times(), psutil.Process().cpu_times()
        counted = [value for name, value in node._asdict().items() if not name.startswith("guest")]
        idle = node.idle + getattr(node, "iowait", 0.0)
        return cls(sum(counted), sum(counted) - idle, own.user + own.system, _cluster_s())


def _cluster_s() -> float:
    """Returns the processor seconds of Ray's services and of its actors other than training."""
    seconds = 0.0
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        words, times = process.info["cmdline"] or [], process.info["cpu_times"]
        is_worker = process.pid == os.getpid() or "RayTrainWorker" in "".join(words[:1])
        if times and not is_worker and any("ray::" in w or "/ray/" in w for w in words[:3]):
            seconds += times.user + times.system
    return seconds


def flops_per_token(session: Session) -> tuple[float, float]:
    """Returns the FLOP of forward and backward pass for one token.

    The first number is for linear layers: 6 per weight, or 4 per frozen weight, which needs no
    gradient. The second is for attention, to be multiplied by the tokens of the row.

    Source: Chowdhery et al., 2022, "PaLM", appendix B.
    """
    linear = [m for m in session.model.modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(m.weight.numel() * (6 if m.weight.requires_grad else 4) for m in linear)
    config = session.model.config
    sizes = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    return float(weights), 12.0 * sizes[0] * sizes[1]


def peak_memory_gib(device: torch.device) -> float:
    """Returns the peak memory of training on a GPU, with driver and libraries, in GiB.

    On a CPU it is the resident memory of this process.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        beside = total - free - torch.cuda.memory_reserved(device)
        return (torch.cuda.max_memory_reserved(device) + max(0, beside)) / 2**30
    return float(psutil.Process().memory_info().rss) / 2**30


def is_throttled(device: torch.device) -> bool | None:
    """Returns whether heat or hardware now reduces the clock; None if NVML does not report it."""
    try:
        slowdowns = nvml.slowdowns(torch.cuda._get_pynvml_handler(device))
    except Exception:  # noqa: BLE001 - NVML fails in many ways; none may end a run
        return None
    return None if slowdowns is None else bool(slowdowns)


class Gauge(threading.Thread):
    """Reads utilisation, power and clock limits of one GPU through NVML until it is stopped."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self._device = device
        self._readings: dict[str, list[float]] = {"utilization": [], "power_w": [], "throttled": []}

    def run(self) -> None:
        """Reads until stopped, or until NVML fails."""
        while not self.stopped.wait(SAMPLE_S):
            try:
                utilization = torch.cuda.utilization(self._device) / 100
                power_w = torch.cuda.power_draw(self._device) / 1000
            except Exception:  # noqa: BLE001 - NVML fails in many ways; none may end a run
                return
            self._readings["utilization"].append(utilization)
            self._readings["power_w"].append(power_w)
            throttled = is_throttled(self._device)
            if throttled is not None:
                self._readings["throttled"].append(float(throttled))

    def mean(self, name: str) -> float | None:
        """Returns the mean of the readings so far; None without readings."""
        values = self._readings[name]
        return sum(values) / len(values) if values else None
