"""A load generator: real sentences, closed or open loop, latencies without coordinated omission.

In an open loop requests are due at their own times, whether or not earlier ones are answered, and
each is timed from when it was due: a server that stalls cannot hide it.
"""

import asyncio
import importlib.resources
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from jobs.errors import DeployError
from jobs.spec.task_registry import DEFAULT_TASK
from serve.tasks.registry import endpoint_of

QUANTILES = (0.5, 0.9, 0.95, 0.99)
OK = 200
MAX_IN_FLIGHT = 10_000
"""An open loop holds no more; what is due beyond it counts as failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send."""

    url: str
    """Of the endpoint's route."""
    seconds: float
    concurrency: int = 8
    """Clients of a closed loop, each sending its next request after an answer."""
    rate: float | None = None
    """Requests per second of an open loop; None for a closed one."""
    texts_per_request: int = 1
    answer_tokens: int = 32
    """Most that a language model is asked to write."""
    headers: Mapping[str, str] | None = None
    timeout_s: float = 30.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came back."""

    requests: int
    seconds: float
    statuses: dict[str, int]
    """How many of each status, or `failed` where none came."""
    texts_per_s: float
    """Of answered requests."""
    latency_ms: dict[str, float]
    """Quantiles over answered requests, from when each was due."""
    histogram: tuple[tuple[float, int], ...]
    """Upper bounds in milliseconds, doubling, and answered requests up to each."""
    versions: dict[str, int]
    """How many answers each model version gave."""
    batch_rows: float
    """Mean rows of the batches that answers came from; 0 where the endpoint does not say."""

    @property
    def failed(self) -> int:
        """Requests that were not answered with 200."""
        return self.requests - self.statuses.get(str(OK), 0)

    @property
    def error_rate(self) -> float:
        """Their share."""
        return self.failed / self.requests if self.requests else 0.0


@dataclass(slots=True)
class _Seen:
    latencies_s: list[float]
    statuses: Counter[str]
    versions: Counter[str]
    batch_rows: list[float]


def sentences() -> list[str]:
    """The sentences that are sent when nobody brings others."""
    text = importlib.resources.files("serve.tools").joinpath("sentences.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line]


async def run(plan: Plan, texts: Sequence[str]) -> LoadResult:
    """Send requests for so long, of the kind that the endpoint's model takes.

    Raises DeployError when it cannot be reached at all, or takes no lists where some are wanted.
    """
    seen = _Seen([], Counter(), Counter(), [])
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        requests = _requests(plan, texts, await _reach(session, plan))
        begin = time.perf_counter()
        if plan.rate is None:
            clients = range(plan.concurrency)
            await asyncio.gather(*(_client(session, plan, requests, begin, seen) for _ in clients))
        else:
            await _open_loop(session, plan, requests, begin, seen)
        seconds = time.perf_counter() - begin
    return summarise(plan, seen.latencies_s, seen.statuses, seen.versions, seen.batch_rows, seconds)


def summarise(
    plan: Plan,
    latencies_s: Sequence[float],
    statuses: Mapping[str, int],
    versions: Mapping[str, int],
    batch_rows: Sequence[float],
    seconds: float,
) -> LoadResult:
    """A result from what was seen."""
    times = np.sort(np.array(latencies_s)) * 1000
    found = {f"p{q * 100:g}": float(np.quantile(times, q)) for q in QUANTILES} if len(times) else {}
    if len(times):
        found["max"] = float(times[-1])
    bounds = [2.0**power for power in range(-1, 16)]
    counts = np.searchsorted(times, bounds, side="right")
    steps = np.diff(np.concatenate([[0], counts]))
    return LoadResult(
        requests=sum(statuses.values()),
        seconds=seconds,
        statuses=dict(statuses),
        texts_per_s=len(times) * plan.texts_per_request / seconds,
        latency_ms=found,
        histogram=tuple(
            (bound, int(count)) for bound, count in zip(bounds, steps, strict=True) if count
        ),
        versions=dict(versions),
        batch_rows=float(np.mean(batch_rows)) if batch_rows else 0.0,
    )


async def _reach(session: aiohttp.ClientSession, plan: Plan) -> Mapping[str, Any]:
    """What the endpoint says of its model; empty where it says nothing."""
    try:
        async with session.get(f"{plan.url}/health") as answer:
            text = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DeployError(
            f"{plan.url} cannot be reached: {error or type(error).__name__}"
        ) from None
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class _Requests:
    """What is sent, over and over."""

    url: str
    bodies: Sequence[Any]


def _requests(plan: Plan, texts: Sequence[str], model: Mapping[str, Any]) -> _Requests:
    shuffled = random.Random(plan.seed).sample(texts, len(texts))
    endpoint = endpoint_of(model.get("task", DEFAULT_TASK))
    bodies = endpoint.bodies(
        shuffled, model, per_request=plan.texts_per_request, tokens=plan.answer_tokens
    )
    return _Requests(f"{plan.url}{endpoint.path}", bodies)


async def _client(
    session: aiohttp.ClientSession, plan: Plan, requests: _Requests, begin: float, seen: _Seen
) -> None:
    number = random.randrange(len(requests.bodies))
    while (now := time.perf_counter()) - begin < plan.seconds:
        await _ask(session, plan, requests, number, now, seen)
        number += 1


async def _open_loop(
    session: aiohttp.ClientSession, plan: Plan, requests: _Requests, begin: float, seen: _Seen
) -> None:
    waiting: set[asyncio.Task[None]] = set()
    number = 0
    async for due in _arrivals(plan, begin):
        if len(waiting) >= MAX_IN_FLIGHT:
            seen.statuses["failed"] += 1
            continue
        task = asyncio.create_task(_ask(session, plan, requests, number, due, seen))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        number += 1
    await asyncio.gather(*waiting)


async def _arrivals(plan: Plan, begin: float) -> AsyncIterator[float]:
    """When requests are due: independent of each other, so many a second in the mean."""
    draw, due = random.Random(plan.seed), begin
    while due - begin < plan.seconds:
        pause = due - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        yield due
        due += draw.expovariate(plan.rate or 1.0)


async def _ask(
    session: aiohttp.ClientSession,
    plan: Plan,
    requests: _Requests,
    number: int,
    due: float,
    seen: _Seen,
) -> None:
    body = requests.bodies[number % len(requests.bodies)]
    try:
        async with session.post(requests.url, json=body, headers=plan.headers) as answer:
            await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        seen.statuses["failed"] += 1
        return
    seen.statuses[str(answer.status)] += 1
    if answer.status == OK:
        seen.latencies_s.append(time.perf_counter() - due)
        seen.versions[answer.headers.get("x-model-version", "unknown")] += 1
        seen.batch_rows.append(float(answer.headers.get("x-batch-size", 0)))
