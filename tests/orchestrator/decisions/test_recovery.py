"""What is done about failures: a table of cases."""

import pytest

from jobs.spec.train import RetrySpec
from orchestrator.decisions.recovery import Cause, Failed, GiveUp, Retry, decide

WORKER = Failed(Cause.LOST_WORKER, "lost", frozenset({"a"}))
OTHER = Failed(Cause.LOST_NODE, "lost", frozenset({"b"}))
HANG = Failed(Cause.HANG, "hung", frozenset({"a"}))
MEMORY = Failed(Cause.OUT_OF_MEMORY, "full")
TAKEN = Failed(Cause.PREEMPTION, "taken", frozenset({"a"}))


@pytest.mark.parametrize("cause", [Cause.LOST_WORKER, Cause.LOST_NODE])
def test_what_passes_is_tried_again_after_a_growing_pause(cause: Cause) -> None:
    one, two = Failed(cause, "", frozenset({"a"})), Failed(cause, "", frozenset({"b"}))
    assert decide([one], None, can_shrink=True) == Retry(1.0)
    assert decide([one, two], None, can_shrink=True) == Retry(2.0)


@pytest.mark.parametrize("cause", [Cause.INPUT, Cause.UNKNOWN])
def test_what_would_end_the_same_way_is_given_up_at_once(cause: Cause) -> None:
    found = decide([Failed(cause, "")], None, can_shrink=True)
    assert found == GiveUp("")


@pytest.mark.parametrize("cause", [Cause.DISK_FULL, Cause.STORAGE])
def test_what_people_must_mend_says_so(cause: Cause) -> None:
    found = decide([Failed(cause, "")], None, can_shrink=True)
    assert isinstance(found, GiveUp)
    assert "--resume" in found.reason


def test_running_out_of_memory_shrinks_as_often_as_it_can() -> None:
    assert decide([MEMORY] * 9, None, can_shrink=True) == Retry(smaller=True)
    assert isinstance(decide([MEMORY], None, can_shrink=False), GiveUp)
    assert decide([MEMORY, MEMORY, WORKER], None, can_shrink=True) == Retry(1.0)


def test_a_node_that_failed_twice_is_left_out() -> None:
    five = RetrySpec(on_events=("node_failure",), max_attempts=5)
    assert decide([WORKER, OTHER], five, can_shrink=True) == Retry(2.0)
    assert decide([WORKER, OTHER, WORKER], five, can_shrink=True) == Retry(
        4.0, avoid=frozenset({"a"})
    )


def test_after_a_hang_it_goes_on_elsewhere_once() -> None:
    assert decide([HANG], None, can_shrink=True) == Retry(1.0, avoid=frozenset({"a"}))
    assert decide([HANG, HANG], None, can_shrink=True) == GiveUp("it hung twice")


def test_attempts_are_counted() -> None:
    assert isinstance(decide([WORKER, OTHER, TAKEN], None, can_shrink=True), GiveUp)
    two = RetrySpec(on_events=("node_failure",), max_attempts=1)
    found = decide([WORKER], two, can_shrink=True)
    assert found == GiveUp("1 attempts failed; train.retry.max_attempts allows no more")


def test_a_job_says_what_is_tried_again() -> None:
    only = RetrySpec(on_events=("preemption",))
    assert decide([WORKER], only, can_shrink=True) == GiveUp(
        "train.retry does not name node_failure"
    )
    assert decide([TAKEN], only, can_shrink=True) == Retry(1.0, avoid=frozenset({"a"}))
    assert isinstance(decide([MEMORY], only, can_shrink=True), GiveUp)
