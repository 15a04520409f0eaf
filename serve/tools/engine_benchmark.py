"""Measures the batch times of a model's engines on a cluster's devices. Thin shell over Ray."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import ray
import ray.exceptions

from cluster import labels
from cluster.inventory import Node
from jobs.errors import DeployError, first_line
from jobs.spec import task_registry
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.serve import ServeSpec
from serve.batching.rows import Tokenizer
from serve.config import ReplicaConfig, configure
from serve.engines import selection
from serve.engines.engine import Head
from serve.engines.engine_factory import EngineFactory, read_eval_sample
from serve.engines.startup import engines_for
from serve.engines.timing_curve import Curve
from serve.tools.cost_frontier import SIZES
from serve.version import ModelVersion, fetched

TIMEOUT_S = 900.0
"""Longest time for all engines on one device."""


def curves(
    version: ModelVersion,
    spec: ServeSpec,
    places: Sequence[tuple[AcceleratorRequest, Node]],
    log: Callable[[str], None],
) -> tuple[Curve, ...]:
    """Measures every engine of the spec on every place, one place after the other.

    Args:
        version: The published model.
        spec: The job's `serve` section.
        places: Accelerators to measure, each with a node that has them.
        log: Receives a line for each place.

    Raises:
        DeployError: if the engines of a place fail or take over TIMEOUT_S.
    """
    measured: list[Curve] = []
    for request, node in places:
        log(f"timing engines on {request}")
        is_cpu = node.sku == "cpu"
        is_gpu = not is_cpu and not node.simulated
        config = configure(version, replace_accelerators(spec, request), "", is_gpu=is_gpu)
        task = ray.remote(_measure).options(
            num_cpus=request.count if is_cpu else 1,
            num_gpus=0 if is_cpu else request.count,
            label_selector={labels.NODE_ID: node.id},
        )
        try:
            measured += ray.get(task.remote(config, str(request)), timeout=TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            raise DeployError(
                f"{request}: the engines were not timed within {TIMEOUT_S:.0f} s; its devices may"
                " be busy, see `winnow status`"
            ) from None
        except ray.exceptions.RayError as error:
            reason = first_line(getattr(error, "cause", None) or error)
            raise DeployError(f"{request}: {reason}") from None
    return tuple(measured)


def replace_accelerators(spec: ServeSpec, request: AcceleratorRequest) -> ServeSpec:
    """Returns the spec with other accelerators."""
    return spec.model_copy(update={"accelerators": request})


def _measure(config: ReplicaConfig, place: str) -> list[Curve]:
    version = fetched(config.version)
    tokenizer = Tokenizer(Path(version.path), version.max_length)
    task = task_registry.find(version.task)
    factory = EngineFactory(
        Path(version.path),
        Path(version.exports),
        tokenizer,
        config.device,
        config.threads,
        Head.of(task),
    )
    sample = read_eval_sample(Path(version.path), task.activation)
    measured = selection.curves(factory, engines_for(config), sample, SIZES)
    return [replace(curve, accelerators=place) for curve in measured]
