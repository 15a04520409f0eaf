"""One process observes a cluster for all browsers, while one of them looks."""

import asyncio
import json

from orchestrator.decisions.observed import Cluster
from orchestrator.ui import watching
from orchestrator.ui.watching import AGAIN_S, IDLE_S, SILENT_S, View, Watch
from tests.builders import eventually
from tests.orchestrator.ui.observing import EMPTY, Observing, line


def looked(watch: Watch, expected: tuple[bool, Cluster | None, str]) -> View:
    """The view once it is what is expected."""

    def is_there() -> bool:
        view = watch.look()
        return (view.is_up, view.found, view.error) == expected

    assert eventually(is_there, within_s=20), watch.look()
    return watch.look()


def test_one_process_observes_until_nobody_has_looked_for_a_while() -> None:
    observing = Observing([line(EMPTY)] * 2)
    watch = observing.watch()
    try:
        first = looked(watch, (True, EMPTY, ""))
        for _ in range(50):
            assert watch.look() == first
        assert len(observing.started) == 1
        observing.now += IDLE_S + 1
        observing.go_on()
        observing.started[0].wait(20)
        assert eventually(lambda: watch._view.found is None)  # nothing old is shown next time
        looked(watch, (True, EMPTY, ""))
        assert len(observing.started) == 2
    finally:
        watch.close()
    observing.started[1].wait(20)


def test_why_the_cluster_cannot_be_observed_is_shown_and_it_is_tried_again() -> None:
    observing = Observing([line(error="no token")])
    watch = observing.watch()
    looked(watch, (True, None, "no token"))
    observing.started[0].wait(20)
    observing.lines = ["not JSON"]
    assert watch.look().error == "no token"
    assert eventually(lambda: watch._process is None)
    observing.now += AGAIN_S
    looked(watch, (True, None, "the cluster's answer is not valid"))
    observing.lines = []
    assert eventually(lambda: watch._process is None)
    observing.is_up = False
    observing.now += AGAIN_S
    looked(watch, (False, None, ""))
    observing.is_up = True
    observing.now += AGAIN_S
    looked(watch, (True, None, "the connection to the cluster is lost; trying again"))


def test_a_cluster_that_says_nothing_is_given_up() -> None:
    observing = Observing([line(EMPTY)])
    watch = observing.watch()
    looked(watch, (True, EMPTY, ""))
    observing.now += SILENT_S + 1
    assert f"within {SILENT_S:.0f} s" in watch.look().error
    observing.started[0].wait(20)


def test_a_browser_hears_of_each_change_once() -> None:
    observing = Observing([])
    observing.is_up = False
    watch = observing.watch()

    async def hear() -> bytes:
        stream = watching.events(watch)
        first = await anext(stream)
        later = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        done, _ = await asyncio.wait([later], timeout=2.5)
        assert not done
        later.cancel()
        return first

    name, data = asyncio.run(hear()).decode().strip().split("\n")
    assert name == "event: cluster"
    assert json.loads(data.removeprefix("data: "))["is_up"] is False
