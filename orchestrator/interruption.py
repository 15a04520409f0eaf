"""Handles SIGTERM and Ctrl-C: as an exception that leaves every `with`, or after saving."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Terminated(BaseException):
    """Raised on SIGTERM; like KeyboardInterrupt, but with another exit code."""


def interrupt(*_: object) -> None:
    """Signal handler that raises Terminated, so that every `with` block is left."""
    raise Terminated


def kind_of(error: BaseException | None) -> type[BaseException] | None:
    """Returns Terminated or KeyboardInterrupt if it is the error or among its causes, else None.

    C code, such as Ray's, and `finally` blocks may replace the interruption by their own exception.
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


def terminate() -> bool:
    """Send SIGTERM to the main thread, from any thread; returns False if no code handles SIGTERM.

    Without a handler the signal would kill the process before it has saved anything.
    """
    if not callable(signal.getsignal(signal.SIGTERM)):
        return False
    main = threading.main_thread().ident
    assert main is not None  # it has started
    signal.pthread_kill(main, signal.SIGTERM)
    return True


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
def leave_on_signal(leave: threading.Event, log: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, the first signal sets `leave`, and a second one interrupts at once.

    The code in the block should save and end once `leave` is set. At the end of the block the
    signal's exception is raised. Outside the main thread it does nothing.

    Raises:
        Terminated: after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds: list[type[BaseException]] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        kinds.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
        if leave.is_set():
            raise kinds[-1]
        leave.set()
        log("saving a checkpoint before the end; a second signal ends the process at once")

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if kinds:  # also after an error in the block
            raise kinds[0]
