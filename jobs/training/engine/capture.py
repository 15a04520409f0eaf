"""Steps captured as CUDA graphs, one for each padded width, so that the host only replays them."""

from collections.abc import Callable, Sequence

import torch

from jobs.training.config import TrainingConfig
from jobs.training.engine.step import Piece, TrainStep
from jobs.training.model.parallel import is_sharded
from jobs.training.world import World

FIRST_WARMUP, LATER_WARMUP = 12, 3
"""Eager steps before a capture: DDP fixes its buckets in the first 11; later widths only load
kernels."""

Run = Callable[[int], None]


class CapturedSteps:
    """Captured graphs of a step for every padded width."""

    def __init__(self, step: TrainStep, widths: Sequence[int], *, sync: bool = True) -> None:
        self._graphs: dict[int, list[tuple[torch.cuda.CUDAGraph, int]]] = {}
        # the widest first: narrower widths then fit into its memory
        pieces = {width: step.pieces(width, sync=sync) for width in sorted(widths, reverse=True)}
        # all eager steps first: their memory is freed before captures allocate
        self._warm_up(pieces)
        step.update.clear()
        pool = None
        for width, found in pieces.items():
            self._graphs[width] = []
            for piece in found:
                graph = torch.cuda.CUDAGraph()
                # thread_local: NCCL's watchdog thread may query its events during a capture
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    piece.run()
                pool = pool or graph.pool()
                self._graphs[width].append((graph, piece.times))

    @staticmethod
    def _warm_up(pieces: dict[int, list[Piece]]) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number, found in enumerate(pieces.values()):
                for _ in range(LATER_WARMUP if number else FIRST_WARMUP):
                    for piece in found:
                        piece.run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def run(self, width: int) -> None:
        """Replays the step of a width."""
        for graph, times in self._graphs[width]:
            for _ in range(times):
                graph.replay()


def reason_for_eager(config: TrainingConfig, world: World, *, on_device: bool) -> str:
    """Returns why steps cannot be captured; empty if they can.

    `on_device`: whether the tokenised rows are in the device's memory.
    """
    reasons = (
        (config.device != "cuda", "there is no GPU"),
        (not config.capture, "capture is switched off"),
        (is_sharded(config, world), f"{config.strategy} gathers weights while it runs"),
        (config.gradient_checkpointing, "gradient checkpointing saves random states on the host"),
        (not on_device, "the data do not fit on the device"),
    )
    return next((reason for applies, reason in reasons if applies), "")
