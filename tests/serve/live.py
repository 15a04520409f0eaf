"""An application on a real socket, and a real browser that looks at it."""

import asyncio
import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from tests.builders import eventually


@contextlib.contextmanager
def on_socket(application: Any) -> Iterator[str]:
    """Its URL while it runs."""
    running = uvicorn.Server(
        uvicorn.Config(application, port=0, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    assert eventually(lambda: running.started, within_s=10)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        thread.join(10)


def seen(url: str, folder: Path, until: str) -> str:
    """The document once a text is on the page; skips where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    words += ["--remote-debugging-port=0", url]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            place = folder / "DevToolsActivePort"
            assert eventually(lambda: place.exists() and "\n" in place.read_text())
            port = int(place.read_text().splitlines()[0])
            return asyncio.run(_read(port, url, until))
        finally:
            process.terminate()


async def _read(port: int, url: str, until: str) -> str:
    """Ask the page for its document until the text is in it, through the browser's own protocol."""
    tabs = f"http://127.0.0.1:{port}/json/list"
    found = ""
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            async with session.get(tabs) as answer:
                pages = [tab for tab in await answer.json() if tab["url"].startswith(url[:20])]
            if pages:
                break
            await asyncio.sleep(0.1)
        async with session.ws_connect(pages[0]["webSocketDebuggerUrl"]) as talk:
            ask = {"expression": "document.documentElement.outerHTML", "returnByValue": True}
            for number in range(300):
                await talk.send_json({"id": number, "method": "Runtime.evaluate", "params": ask})
                answer = await talk.receive_json()
                found = answer["result"]["result"].get("value", "")
                if until in found.split("<script>")[0]:
                    return found
                await asyncio.sleep(0.1)
    raise AssertionError(f"{until!r} did not come: {found[-3000:]}")
