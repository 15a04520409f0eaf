"""Clients of a chat endpoint that ask in every way, and compare what they are answered."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp

from benchmarks.serve_faults import utc
from serve.tools.load_generator import sentences
from serve.version import ModelVersion

OK, STUCK_S = 200, 60.0
ANSWER, CONTEXT = 16, 512
"""Most tokens of an answer, and of a conversation."""
PROMPTS = 24
"""Different questions, whose answers are known."""
KINDS = ("whole", "stream", "leaves", "stop", "long", "several", "drawn")


def questions() -> list[str]:
    """What clients ask; some are long."""
    texts = sentences()
    long = [" ".join(texts[at : at + 12])[: 2 * CONTEXT] for at in range(0, PROMPTS, 4)]
    return [*texts[: PROMPTS - len(long)], *long]


class Clients:
    """Clients that ask until they are told to end, and what they found."""

    def __init__(self, url: str, versions: Sequence[ModelVersion], known: dict[str, list[str]]):
        """Args: the endpoint's URL, the versions, and their greedy answers."""
        self.url, self.known = f"{url}/v1/chat/completions", known
        self.names = [None, *(f"{version.name}@{version.id}" for version in versions)]
        self.texts, self.ending = questions(), asyncio.Event()
        self.asked, self.failed, self.wrong = Counter[str](), list[Any](), list[Any]()
        self.stuck = self.broken = 0
        self.seconds, self.versions = list[float](), Counter[str]()
        self.event = "before"

    async def keep_asking(self, number: int) -> None:
        """Sends one client's requests, each of a random kind, until all clients are told to end."""
        draw, timeout = random.Random(number), aiohttp.ClientTimeout(total=STUCK_S)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while not self.ending.is_set():
                kind, at = draw.choice(KINDS), draw.randrange(len(self.texts))
                begin, event = time.time(), self.event
                try:
                    await self.ask(client, kind, at, draw)
                except TimeoutError:
                    self.stuck += 1
                except (aiohttp.ClientError, ConnectionError, ValueError) as error:
                    if kind in ("stream", "leaves") and event.startswith("replica killed"):
                        self.broken += 1
                    else:
                        self.note(self.failed, kind, begin, repr(error)[:300])
                self.asked[kind] += 1
                self.seconds.append(time.time() - begin)

    async def until(self, count: int) -> None:
        """Waits for so many answers."""
        while self.asked.total() < count:
            await asyncio.sleep(1)

    def note(self, found: list[Any], kind: str, begin: float, told: object) -> None:
        """Puts a fault down."""
        found.append({"kind": kind, "at": utc(begin), "after": self.event, "told": told})

    async def ask(self, client: aiohttp.ClientSession, kind: str, at: int, draw: Any) -> None:
        """One request, and whether its answer is right."""
        question = self.texts[-1 - at % (PROMPTS // 4)] if kind == "long" else self.texts[at]
        at, begin = self.texts.index(question), time.time()
        body: dict[str, Any] = {"messages": [{"role": "user", "content": question}]}
        body |= {"max_tokens": ANSWER, "temperature": 0, "model": draw.choice(self.names)}
        stop = draw.choice("aeiou")
        body |= {"stop": [stop]} if kind == "stop" else {}
        body |= {"n": 2} if kind == "several" else {}
        body |= {"temperature": 1, "seed": draw.randrange(99)} if kind == "drawn" else {}
        body |= {"stream": True} if kind in ("stream", "leaves") else {}
        async with client.post(self.url, json=body) as answer:
            version = answer.headers.get("x-model-version", "")
            self.versions[version] += 1
            if answer.status != OK:
                told = f"{answer.status} {(await answer.text())[:300]}"
                self.note(self.failed, kind, begin, told)
                return
            texts = await self.read(answer, kind)
        if texts is None or kind == "drawn":
            return
        expected = self.known[version][at]
        expected = expected.partition(stop)[0] if kind == "stop" else expected
        asked = (body["model"] or f"@{version}").partition("@")[2]
        if any(text != expected for text in texts) or version != asked:
            self.note(self.wrong, kind, begin, [version, asked, question, texts, expected])

    async def read(self, answer: aiohttp.ClientResponse, kind: str) -> list[str] | None:
        """The texts of an answer; None for one that the client leaves."""
        if kind not in ("stream", "leaves"):
            whole = await answer.json()
            return [each["message"]["content"] for each in whole["choices"]]
        text = ""
        async for line in answer.content:
            data = line.decode().removeprefix("data: ").strip()
            if not data:
                continue
            if data == "[DONE]":
                return [text]
            event = json.loads(data)
            if "error" in event:
                raise ValueError(str(event))
            text += "".join(each["delta"].get("content") or "" for each in event["choices"])
            if text and kind == "leaves":
                answer.close()
                return None
        raise ConnectionError("the stream ended without its last event")

    def found(self, seconds: float) -> dict[str, Any]:
        """What they found in so many seconds."""
        took = sorted(self.seconds)
        return {
            "requests": self.asked.total(),
            "kinds": self.asked,
            "versions": self.versions,
            "wrong": len(self.wrong),
            "stuck": self.stuck,
            "failed": len(self.failed),
            "broken_by_the_kill": self.broken,
            "faults": [*self.wrong[:10], *self.failed[:10]],
            "seconds": {q: took[int(q * (len(took) - 1))] for q in (0.5, 0.95, 0.99, 1)},
            "requests_per_s": self.asked.total() / seconds,
        }
