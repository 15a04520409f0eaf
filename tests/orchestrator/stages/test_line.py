"""Orders to the workers of a run, of which a thread plays the part."""

import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from jobs.training.events import Event, Stepped

Answer = Callable[[str], list[list[Event]]]
"""Returns the batches of events that answer the order of an id."""


def line_to(answer: Answer) -> Any:
    """A line to a thread that takes one order; what it gets after that stays in `orders`."""
    from orchestrator.stages.line import Line, Order

    orders, answers = queue.Queue[Any](), queue.Queue[Any]()

    def work() -> None:
        order = orders.get(timeout=30)
        assert isinstance(order, Order)
        for batch in answer(order.id):
            answers.put(batch)

    threading.Thread(target=work, daemon=True).start()
    return Line(cast(Any, orders), cast(Any, answers))


def began(order: str) -> Any:
    from orchestrator.stages.line import Began

    return Began(order, "group", frozenset({"node"}))


def finished(order: str) -> Any:
    from orchestrator.stages.line import Finished

    return Finished(order)


def step(number: int) -> Stepped:
    return Stepped(number, loss=1.0, samples=1, tokens=1, padded_tokens=1, seconds=0.1)


@pytest.mark.timeout(60)
def test_events_are_passed_on_one_by_one_however_they_come() -> None:
    own = [step(number) for number in (1, 2, 3)]
    line = line_to(
        lambda order: [
            [step(9), finished("of another giver"), began(order)],
            own[:1],
            [*own[1:], finished(order), step(10)],
        ]
    )
    heard: list[Event] = []
    begun: list[int] = []
    line.run(b"", heard.append, on_begin=lambda: begun.append(len(heard)))
    assert (heard, begun) == (own, [0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("batches", [1, 2])
def test_an_order_that_is_left_early_is_taken_back_unless_it_has_ended(batches: int) -> None:
    from orchestrator.stages.line import TakenBack

    def answer(order: str) -> list[list[Event]]:
        first, last = [began(order), step(1), step(2)], [finished(order)]
        return [first + last] if batches == 1 else [first, last]

    line, heard = line_to(answer), list[Event]()

    def stop(event: Event) -> None:
        heard.append(event)
        raise SystemExit

    with pytest.raises(SystemExit):
        line.run(b"", stop)
    assert heard == [step(1)]
    assert line.answers.empty()
    left = [] if line.orders.empty() else [line.orders.get()]
    assert left == ([] if batches == 1 else [TakenBack()])
