"""Steps captured as CUDA graphs, one for each padded width, so that the host only replays them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch import config as functorch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from jobs.training import random_states
from jobs.training.config import TrainingConfig
from jobs.training.engine.step import Piece, TrainStep
from jobs.training.model.parallel import is_sharded
from jobs.training.world import World

FIRST_WARMUP, LATER_WARMUP = 12, 3
"""Eager steps before a capture: DDP fixes its buckets in the first 11; later widths only load
kernels."""

LARGEST_CONSTANT = 64
"""Most elements of a tensor on the host that is written on the device element by element."""

HOST_DRAWS = "the model draws random numbers on the host, which every replay would repeat"

Run = Callable[[int], None]


class HostConstants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes constants on the device that a model makes on the host and copies there.

    A CUDA graph cannot hold such a copy, because the host waits for it. Models make small tensors
    of Python numbers in their forward pass, such as the bucket size of positions in DeBERTa;
    kernels that write the same numbers can be captured.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._type = device.type

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation, or its replacement."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            source, device = args[0], kwargs.get("device")
            if self._is_constant(source) and device and torch.device(device).type == self._type:
                dtype = kwargs.get("dtype") or source.dtype
                return _written(torch.empty(source.shape, dtype=dtype, device=device), source)
        elif func is torch.ops.aten.copy_.default:
            target, source = args[:2]
            is_alike = self._is_constant(source) and source.shape == target.shape
            if is_alike and target.device.type == self._type:
                return _written(target, source)
        return func(*args, **kwargs)

    @staticmethod
    def _is_constant(source: torch.Tensor) -> bool:
        # a graph may copy pinned memory, and reads it again in each replay
        is_small = source.device.type == "cpu" and source.numel() <= LARGEST_CONSTANT
        return is_small and not source.is_pinned()


def _written(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Fills a tensor of a device with the elements of one on the host."""
    if source.dim() == 0:
        return target.fill_(source.item())
    for index, value in enumerate(source.flatten().tolist()):
        target.view(-1)[index].fill_(value)
    return target


def compiled(
    forward: Callable[..., Any],
    *,
    recomputes: bool = False,
    dynamic: bool | None = None,
    tunes: bool = False,
) -> Callable[..., Any]:
    """Returns a compiled function that stays compiled during a capture.

    PyTorch runs what it compiled uncompiled inside of any TorchDispatchMode. With `recomputes` the
    backward pass computes again what takes little time, such as norms and activation functions.
    With `dynamic` shapes one compilation serves all of them, with None all but the first. With
    `tunes` sizes of kernels are measured, and products of one row with a matrix are kernels of
    their own, which read at twice the speed; compiling takes longer.
    """
    options: dict[str, Any] | None = {"coordinate_descent_tuning": True} if tunes else None
    fast = torch.compile(forward, dynamic=dynamic, options=options)

    def run(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as modes:
            modes.enter_context(_disable_current_modes())
            if recomputes:  # read when the first call compiles
                modes.enter_context(functorch.patch(aggressive_recomputation=True))
            return fast(*args, **kwargs)

    return run


def is_compiled(config: TrainingConfig, world: World) -> bool:
    """Returns whether layers are compiled: on GPUs alone."""
    return config.compile and world.device.type == "cuda"


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
                graph, states = torch.cuda.CUDAGraph(), random_states.of_host()
                # thread_local: NCCL's watchdog thread may query its events during a capture
                with (
                    HostConstants(step.world.device),
                    torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
                ):
                    piece.run()
                # a graph without exchange is timed only, and the whole one has been checked
                if sync and random_states.of_host() != states:
                    raise RuntimeError(HOST_DRAWS)
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


def reason_for_eager(
    config: TrainingConfig, world: World, *, on_device: bool, keeps_random_states: bool = False
) -> str:
    """Returns why steps cannot be captured; empty if they can.

    `on_device`: whether the tokenised rows are in the device's memory. `keeps_random_states`:
    whether gradient checkpointing has to, for layers with dropout.
    """
    reasons = (
        (config.device != "cuda", "there is no GPU"),
        (not config.capture, "capture is switched off"),
        (is_sharded(config, world), f"{config.strategy} gathers weights while it runs"),
        (keeps_random_states, "gradient checkpointing of dropout keeps random states on the host"),
        (not on_device, "the data do not fit on the device"),
    )
    return next((reason for applies, reason in reasons if applies), "")
