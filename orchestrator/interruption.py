"""SIGTERM and Ctrl-C: an exception that leaves every `with`, or first a moment to save."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Terminated(BaseException):
    """SIGTERM: the same clean end as Ctrl-C, with another exit code."""


def interrupt(*_: object) -> None:
    """Turn SIGTERM into an exception, so that every `with` is left."""
    raise Terminated


def of(error: BaseException | None) -> type[BaseException] | None:
    """What interrupted, Terminated or KeyboardInterrupt, where an exception came of it.

    C code, such as Ray's, raises one of its own in its place, as may whatever is left on the way.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, Terminated | KeyboardInterrupt):
            return type(error)
        error = error.__cause__ or error.__context__
    return None


def take_over() -> None:
    """Let SIGTERM interrupt from now on; only the main thread may, and elsewhere it is left."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def handler_kept() -> Iterator[None]:
    """What SIGTERM does is the same after the block as before it, whoever changes it inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def asked_first(leave: threading.Event, tell: Callable[[str], None]) -> Iterator[None]:
    """Inside the block a first signal sets `leave`, which is told, and a second one interrupts.

    Whoever sees `leave` ends in good order; then the block raises what the signal stands for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds: list[type[BaseException]] = []

    def ask(number: int, _: FrameType | None) -> None:
        kinds.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
        if leave.is_set():
            raise kinds[-1]
        leave.set()
        tell("saving before it ends; a second signal ends it at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if kinds:  # also where leaving failed
            raise kinds[0]
