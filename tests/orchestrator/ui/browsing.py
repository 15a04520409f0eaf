"""A page in Chromium that tests drive through the browser's own protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from docs.tools import pictures

WAIT_S, POLL_S = 60.0, 0.05


class Page:
    """One page; its methods wait until the page has done what they ask for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.problems: list[str] = []
        """What the console complained of, such as a breach of the content security policy."""

    async def ask(self, method: str, **params: Any) -> Any:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json(timeout=WAIT_S)
            if told.get("id") == number:
                assert "result" in told, told
                return told["result"]
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        entry = params.get("entry", {})
        if told.get("method") == "Log.entryAdded" and entry.get("level") == "error":
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        done = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, condition: str) -> None:
        """Waits until an expression is true."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not await self.run(f"Boolean({condition})"):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            shown = await self.run("document.body?.innerText")
            raise AssertionError(
                f"{condition} did not come true: {shown} {self.problems}"
            ) from None

    async def see(self, text: str) -> None:
        """Waits until a text is on the page."""
        await self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    async def go(self, url: str) -> None:
        """Opens a URL."""
        await self.ask("Page.navigate", url=url)

    async def press(self, key: str) -> None:
        """Presses a key, such as Tab or Enter."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9, "Escape": 27}[key]
        for kind in ("keyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **text,
            )

    async def resize(self, width: int, height: int, scheme: str) -> None:
        """Takes another size and colour scheme, light or dark."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.ask("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """The whole page as PNG."""
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def page(browser: str) -> AsyncIterator[Page]:
    """A page of a browser that is started for it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
        words += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        port = Path(profile) / "DevToolsActivePort"
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            try:
                async with asyncio.timeout(pictures.LOAD_S):
                    while not (port.exists() and "\n" in port.read_text("utf-8")):
                        await asyncio.sleep(POLL_S)
                tabs = f"http://127.0.0.1:{port.read_text('utf-8').splitlines()[0]}/json/list"
                async with aiohttp.ClientSession() as session:
                    url = await _first(session, tabs)
                    async with session.ws_connect(url, max_msg_size=0) as socket:
                        made = Page(socket)
                        for domain in ("Page", "Runtime", "Log"):
                            await made.ask(f"{domain}.enable")
                        yield made
            finally:
                run.terminate()


async def _first(session: aiohttp.ClientSession, tabs: str) -> str:
    """The URL of the first page's protocol, once the browser has opened one."""
    async with asyncio.timeout(pictures.LOAD_S):
        while True:
            async with session.get(tabs) as answer:
                found = [tab for tab in await answer.json() if tab["type"] == "page"]
            if found:
                return str(found[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(POLL_S)
