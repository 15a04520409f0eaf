"""Take the documentation's pictures, of what a quickstart left behind.

    make quickstart pictures
    python docs/tools/pictures.py [--storage .winnow] [--out docs/pictures]

Commands are run and what they print is drawn by Rich; pages are opened in Chromium, which must be
installed. Leaves the quickstart's endpoint up.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
COLUMNS = 118
JOB = "examples/quickstart.yaml"
SENTENCE = "A superb film that never finds its feet"
LOAD_S, POLL_S = 60, 0.2
"""How long a page may take, and how often it is looked at."""
DOCUMENT = {"expression": "document.documentElement.outerHTML", "returnByValue": True}


def main() -> int:
    """Every picture, by the name that pages use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default=".winnow")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures")
    arguments = parser.parse_args()
    found = browser()
    if found is None:
        raise SystemExit("chromium is needed: apt install chromium")
    arguments.out.mkdir(parents=True, exist_ok=True)
    stored = ("--storage", arguments.storage)
    page = Path(json.loads(printed("report", *stored, "--json"))["report"])
    url = json.loads(printed("deploy", JOB, "--json"))["url"]
    for name, words in {
        "plan": ("plan", JOB),
        "receipt": ("report", *stored),
        "load": ("load", url, "--seconds", "5"),
    }.items():
        draw(words, arguments.out / f"{name}.svg")
    pages = {
        "report": (page.as_uri(), "Samples a dollar", (1100, 1500)),
        "playground": (f"{url}/#text={SENTENCE}", "ms in the engine", (900, 660)),
    }
    for name, (link, until, size) in pages.items():
        (arguments.out / f"{name}.png").write_bytes(visit(found, link, until, size)[1])
    return 0


def printed(*words: str) -> str:
    """What a command of Winnow's prints on a terminal of our width."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    command = [str(Path(sys.executable).with_name("winnow")), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"winnow {' '.join(words)} failed: {done.stderr}")
    return done.stdout or done.stderr


def draw(words: tuple[str, ...], file: Path) -> None:
    """A command and what it prints, as a picture that asks nobody for fonts."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed(*words).replace(str(Path.cwd()), "~/winnow")))
    picture = console.export_svg(title=f"winnow {words[0]}", unique_id=file.stem)
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), "utf-8")


def visit(browser: str, url: str, until: str, size: tuple[int, int]) -> tuple[str, bytes]:
    """Document and picture of a page once a text is on it; TimeoutError when it does not come."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
        words += [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        words += ["--remote-debugging-port=0", url]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            try:
                return asyncio.run(_look(Path(profile) / "DevToolsActivePort", until))
            finally:
                run.terminate()


def browser() -> str | None:
    """Chromium's path, or Chrome's."""
    return shutil.which("chromium") or shutil.which("google-chrome")


async def _look(place: Path, until: str) -> tuple[str, bytes]:
    """Through the browser's own protocol; its port is in a file."""
    document = ""
    try:
        async with asyncio.timeout(LOAD_S), aiohttp.ClientSession() as session:
            while not (place.exists() and "\n" in place.read_text()):
                await asyncio.sleep(POLL_S)
            tabs = f"http://127.0.0.1:{place.read_text().splitlines()[0]}/json/list"
            pages: list[dict[str, str]] = []
            while not pages:
                async with session.get(tabs) as answer:
                    pages = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as talk:

                async def ask(method: str, **params: Any) -> Any:
                    await talk.send_json({"id": 1, "method": method, "params": params})
                    return (await talk.receive_json())["result"]

                while until not in document.split("<script>")[0]:
                    await asyncio.sleep(POLL_S)
                    found = await ask("Runtime.evaluate", **DOCUMENT)
                    document = found["result"].get("value", "")
                return document, base64.b64decode((await ask("Page.captureScreenshot"))["data"])
    except TimeoutError:
        raise TimeoutError(f"{until!r} did not come: {document[-3000:]}") from None


if __name__ == "__main__":
    sys.exit(main())
