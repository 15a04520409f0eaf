"""Decides how to recover from a failure of training: retry, shrink, avoid nodes, or give up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from jobs.spec.train import RetrySpec

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pause before the second attempt, which doubles before each later attempt up to the longest."""
FAILURES_TO_AVOID = 2
"""Failures of a node after which it is avoided."""
MOST_HANGS = 2
"""Hangs after which the run fails, because the hang is reproducible."""


class Cause(StrEnum):
    """Why training ended early."""

    OUT_OF_MEMORY = "out of memory"
    LOST_WORKER = "a worker was lost"
    LOST_NODE = "a node was lost"
    DEVICE = "a device failed"
    HANG = "nothing moved any more"
    PREEMPTION = "a node is taken away"
    INPUT = "data, model or settings do not work"
    DISK_FULL = "a disk is full"
    STORAGE = "the storage does not answer"
    UNKNOWN = "unknown"


EVENTS = {
    Cause.OUT_OF_MEMORY: "oom",
    Cause.LOST_WORKER: "node_failure",
    Cause.LOST_NODE: "node_failure",
    Cause.DEVICE: "node_failure",
    Cause.HANG: "hang",
    Cause.PREEMPTION: "preemption",
}
"""Retryable causes and their names in `train.retry.on_events`."""
ELSEWHERE = {Cause.DEVICE, Cause.HANG, Cause.PREEMPTION}
"""Causes after which a node is avoided at once, if others suffice."""


def may_pass(cause: Cause) -> bool:
    """Returns whether the same work may succeed in another attempt."""
    return cause in EVENTS and cause is not Cause.OUT_OF_MEMORY


@dataclass(frozen=True, slots=True)
class Failed:
    """One attempt that ended early."""

    cause: Cause
    message: str
    """Sentence for the user."""
    nodes: frozenset[str] = frozenset()
    """Ray ids of the failed nodes; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Continue from the newest checkpoint."""

    pause_s: float = 0.0
    smaller: bool = False
    """Whether to use a smaller micro batch, with the same global batch."""
    avoid: frozenset[str] = frozenset()
    """Ray ids of nodes to avoid."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run, which can be resumed later."""

    reason: str
    """Empty if the failure's message is sufficient."""


def decide(
    failures: Sequence[Failed], retry: RetrySpec | None, *, can_shrink: bool
) -> Retry | GiveUp:
    """Decide what to do after the last of a run's failures.

    Without `train.retry` in the job, every retryable cause is retried, up to three attempts.
    `can_shrink`: whether a smaller micro batch exists.
    """
    last = failures[-1]
    event = EVENTS.get(last.cause)
    if event is None:
        return GiveUp(_final(last.cause))
    rules = retry or RetrySpec(on_events=tuple(sorted(set(EVENTS.values()))))  # type: ignore[arg-type]  # the same names
    if event not in rules.on_events:
        return GiveUp(f"train.retry does not name {event}")
    if last.cause is Cause.OUT_OF_MEMORY:
        return Retry(smaller=True) if can_shrink else GiveUp("not even one row at a time fits")
    counted = [failure for failure in failures if failure.cause is not Cause.OUT_OF_MEMORY]
    if len(counted) >= rules.max_attempts:
        return GiveUp(f"{len(counted)} attempts failed; train.retry.max_attempts allows no more")
    if sum(failure.cause is Cause.HANG for failure in failures) >= MOST_HANGS:
        return GiveUp("it hung twice")
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (len(counted) - 1))
    return Retry(pause_s, avoid=_avoided(failures))


def _avoided(failures: Sequence[Failed]) -> frozenset[str]:
    counts = Counter(node for failure in failures for node in failure.nodes)
    often = {node for node, count in counts.items() if count >= FAILURES_TO_AVOID}
    at_once = {node for f in failures if f.cause in ELSEWHERE for node in f.nodes}
    return frozenset(often | at_once)


def _final(cause: Cause) -> str:
    if cause in (Cause.DISK_FULL, Cause.STORAGE):
        return "repair it, then continue with --resume"
    return ""
