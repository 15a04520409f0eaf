"""How many replicas the demand needs. Ray Serve adds bounds and delays to the answer."""

from typing import Any


def replicas_for(in_flight: float, target: float) -> float:
    """Replicas at which each has `target` requests in flight; 0 when nobody asks."""
    return in_flight / target


def policy(context: Any) -> tuple[float, dict[str, Any]]:
    """Ray Serve's hook: demand is what it sees itself or what replicas tell, whichever is more.

    It sees requests that wait for a first replica, and none that the door answers.
    """
    told = (context.aggregated_metrics or {}).get("requests", {})
    in_flight = max(float(context.total_num_requests), float(sum(told.values())))
    return replicas_for(in_flight, context.config.get_target_ongoing_requests()), {}
