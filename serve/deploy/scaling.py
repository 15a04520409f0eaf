"""Computes the number of replicas from the demand. Ray Serve applies bounds and delays to it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

SILENT_S = 6.0
"""How long after a replica's last statistics its demand is unknown; it sends them every 2 s."""
START_S = 900.0
"""For how long a first replica that is still starting is not stopped for lack of demand."""
ON = "on "
"""Prefix of an accelerator's name in the statistics of its replicas."""


def replicas_for(in_flight: float, target: float) -> float:
    """Returns the number of replicas at which each has `target` requests in flight."""
    return in_flight / target


class Policy:
    """Autoscaling policy for Ray Serve.

    The demand is the larger of two counts of requests in flight: Ray Serve's own, which has those
    that wait for a first replica, and the replicas' statistics, which have those that the fast path
    answers. New replicas are assumed to be on the same accelerators as the present ones. While the
    demand of a replica is unknown, as on a machine that is too busy to tell it, no replica is
    stopped. Nor is the first one while it starts, for up to START_S.
    """

    def __init__(
        self, targets: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args: requests in flight per replica by accelerator, where it differs from the usual."""
        self._targets, self._clock = targets, clock
        self._starting_since: float | None = None
        self._heard: dict[Any, tuple[float | None, float]] = {}
        """By replica: the time of its last statistics, on its clock, and since when they are here,
        on ours."""

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
        wanted = replicas_for(in_flight, sum(present) / len(present) if present else usual)
        held = context.target_num_replicas if self._is_one_silent(context) else 0
        return max(wanted, held, 1 if self._is_first_starting(context) else 0), {}

    def _is_first_starting(self, context: Any) -> bool:
        """Returns whether there is no replica yet, but one to come, and since less than START_S."""
        now, target = self._clock(), context.target_num_replicas
        if context.running_replicas or not target:
            self._starting_since = None
            return False
        if self._starting_since is None:
            self._starting_since = now
        return now - self._starting_since < START_S

    def _is_one_silent(self, context: Any) -> bool:
        """Returns whether a running replica has told nothing new for SILENT_S, or nothing yet."""
        told, now = (context.raw_metrics or {}).get("requests", {}), self._clock()
        before, self._heard = self._heard, {}
        for each in context.running_replicas:
            last = before.get(each)
            at = told[each][-1].timestamp if told.get(each) else None
            self._heard[each] = last if last and last[0] == at else (at, now)
        return any(at is None or now - since > SILENT_S for at, since in self._heard.values())
