"""An application on a real socket, and a page of it in a real browser."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from docs.tools import pictures
from tests.builders import eventually


@contextlib.contextmanager
def on_socket(application: Any, http: Any = "auto") -> Iterator[str]:
    """Runs an application and yields its URL; `http` is uvicorn's option."""
    running = uvicorn.Server(
        uvicorn.Config(application, port=0, log_level="warning", lifespan="off", http=http)
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    assert eventually(lambda: running.started, within_s=60)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        thread.join(10)


def seen(url: str, until: str) -> str:
    """The document once a text is on the page; skips where there is no browser."""
    browser = pictures.browser()
    if browser is None:
        pytest.skip("needs chromium")
    return pictures.visit(browser, url, until, (800, 600))[0]
