"""Steps captured as CUDA graphs, one for each padded width, so that the host launches one thing."""

from collections.abc import Callable, Sequence

import torch

from jobs.training.config import MAX_CAPTURED_PASSES, TrainingConfig
from jobs.training.model.parallel import is_sharded
from jobs.training.world import World

FIRST_WARMUP, LATER_WARMUP = 12, 3
"""Eager steps before a capture: DDP settles its buckets over the first 11, later widths only load
kernels."""

Run = Callable[[int], None]


class CapturedSteps:
    """Replays of `run(width)`."""

    def __init__(self, run: Run, widths: Sequence[int]) -> None:
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool = None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # the widest first: narrower ones then fit into the memory it took
        for width in sorted(widths, reverse=True):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(LATER_WARMUP if self._graphs else FIRST_WARMUP):
                    run(width)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # thread_local: NCCL's watchdog thread may look at its events meanwhile
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                run(width)
            pool = pool or graph.pool()
            self._graphs[width] = graph

    def run(self, width: int) -> None:
        """Replay the step of a width."""
        self._graphs[width].replay()


def refusal(config: TrainingConfig, world: World, passes: int, *, on_device: bool) -> str:
    """Why steps are not captured; empty when they are."""
    reasons = (
        (config.device != "cuda", "there is no GPU"),
        (not config.capture, "capture is switched off"),
        (is_sharded(config, world), f"{config.strategy} gathers weights while it runs"),
        (config.gradient_checkpointing, "gradient checkpointing saves random states on the host"),
        (
            passes > MAX_CAPTURED_PASSES,
            f"{passes} passes of accumulation take too long to capture",
        ),
        (not on_device, "the data do not fit on the device"),
    )
    return next((reason for applies, reason in reasons if applies), "")
