"""How many replicas the demand needs. Ray Serve adds bounds and delays to the answer."""

from collections.abc import Mapping
from typing import Any

ON = "on "
"""Before the name of an accelerator, in what its replicas tell."""


def replicas_for(in_flight: float, target: float) -> float:
    """Replicas at which each has `target` requests in flight; 0 when nobody asks."""
    return in_flight / target


class Policy:
    """Ray Serve's hook: demand is what it sees itself or what replicas tell, whichever is more.

    It sees requests that wait for a first replica, and none that the door answers. Replicas to come
    are taken to be on what those are on that are there.
    """

    def __init__(self, targets: Mapping[str, float]) -> None:
        """Requests in flight per replica, by accelerator, where they are not as for the others."""
        self._targets = targets

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Replicas that are needed, and no state."""
        told = context.aggregated_metrics or {}
        requests = told.get("requests", {})
        in_flight = max(float(context.total_num_requests), float(sum(requests.values())))
        usual = context.config.get_target_ongoing_requests()
        own = [
            self._targets.get(name.removeprefix(ON), usual)
            for name, replicas in told.items()
            if name.startswith(ON)
            for _ in replicas
        ]
        return replicas_for(in_flight, sum(own) / len(own) if own else usual), {}
