"""Computes the number of replicas from the demand. Ray Serve applies bounds and delays to it."""

from collections.abc import Mapping
from typing import Any

ON = "on "
"""Prefix of an accelerator's name in the statistics of its replicas."""


def replicas_for(in_flight: float, target: float) -> float:
    """Returns the number of replicas at which each has `target` requests in flight."""
    return in_flight / target


class Policy:
    """Autoscaling policy for Ray Serve.

    The demand is the larger of two counts of requests in flight: Ray Serve's own, which has those
    that wait for a first replica, and the replicas' statistics, which have those that the fast path
    answers. New replicas are assumed to be on the same accelerators as the present ones.
    """

    def __init__(self, targets: Mapping[str, float]) -> None:
        """Args: requests in flight per replica by accelerator, where it differs from the usual."""
        self._targets = targets

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Returns the number of replicas, and an empty state."""
        statistics = context.aggregated_metrics or {}
        requests = statistics.get("requests", {})
        in_flight = max(float(context.total_num_requests), float(sum(requests.values())))
        usual = context.config.get_target_ongoing_requests()
        present = [
            self._targets.get(name.removeprefix(ON), usual)
            for name, replicas in statistics.items()
            if name.startswith(ON)
            for _ in replicas
        ]
        return replicas_for(in_flight, sum(present) / len(present) if present else usual), {}
