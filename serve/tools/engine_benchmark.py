"""Measures the batch times of a model's engines on a cluster's devices. Thin shell over Ray."""

from collections.abc import Callable, Sequence

import ray
import ray.exceptions

from cluster import labels
from cluster.inventory import Node
from jobs.errors import DeployError, first_line
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.serve import ServeSpec
from serve.config import ReplicaConfig, configure
from serve.engines import selection
from serve.engines.engine_factory import EngineFactory, eval_sample_of
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
        placed = spec.model_copy(update={"accelerators": request})
        config = configure(version, placed, "", is_gpu=is_gpu)
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


def _measure(config: ReplicaConfig, place: str) -> list[Curve]:
    version = fetched(config.version)
    factory = EngineFactory.of(version, config.device, config.threads)
    sample = eval_sample_of(version)
    return selection.curves(factory, engines_for(config), sample, SIZES, place)
