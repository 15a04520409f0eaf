"""A load generator with real sentences, in a closed or an open loop.

Latencies are free of coordinated omission: in an open loop each request has a scheduled time, which
does not depend on earlier answers, and its latency is measured from that time. A stalled server
therefore shows up in the latencies. Language models are asked for streams, whose tokens are timed.
"""

import asyncio
import importlib.resources
import json
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from jobs.errors import DeployError
from jobs.spec.task_registry import DEFAULT_TASK
from serve.tasks.registry import endpoint_of
from serve.tools.stream_times import StreamTimes, read_stream

QUANTILES = (0.5, 0.9, 0.95, 0.99)
OK = 200
SPREAD = 0.5
"""Standard deviation of the logarithm of the most tokens of answers."""
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields that ask for an answer in events, of which the last one has the tokens."""
MAX_IN_FLIGHT = 10_000
"""Most unanswered requests of an open loop; further requests count as failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a load test."""

    url: str
    """URL of the endpoint's route."""
    seconds: float
    """Duration of the test."""
    concurrency: int = 8
    """Clients of a closed loop; each one sends its next request after an answer."""
    rate: float | None = None
    """Requests per second of an open loop; None for a closed loop."""
    texts_per_request: int = 1
    answer_tokens: int = 32
    """Mean of the most tokens of a language model's answers, which vary log-normally."""
    headers: Mapping[str, str] | None = None
    timeout_s: float = 30.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a load test."""

    requests: int
    seconds: float
    statuses: dict[str, int]
    """Requests by HTTP status; `failed` for those without an answer."""
    texts_per_s: float
    """Texts of answered requests per second."""
    latency_ms: dict[str, float]
    """Quantiles of the latency of answered requests, from their scheduled times."""
    histogram: tuple[tuple[float, int], ...]
    """Upper bound in milliseconds and answered requests of each bucket; the bounds double."""
    versions: dict[str, int]
    """Answers by model version."""
    batch_rows: float
    """Mean rows of the answers' batches; 0 if the endpoint does not report them."""
    tokens_per_s: float = 0.0
    """Tokens per second that a language model wrote."""
    first_token_ms: dict[str, float] = field(default_factory=dict)
    """Quantiles of the time from a request's scheduled time to the first text of its answer."""
    token_ms: dict[str, float] = field(default_factory=dict)
    """Quantiles over answers of the mean time of each token after the first text."""

    @property
    def failed(self) -> int:
        """Requests that were not answered with 200."""
        return self.requests - self.statuses.get(str(OK), 0)

    @property
    def error_rate(self) -> float:
        """Share of requests that were not answered with 200."""
        return self.failed / self.requests if self.requests else 0.0


@dataclass(slots=True)
class _Observations:
    latencies_s: list[float]
    statuses: Counter[str]
    versions: Counter[str]
    batch_rows: list[float]
    streams: list[StreamTimes]


def sentences() -> list[str]:
    """Returns the default sentences of a load test."""
    text = importlib.resources.files("serve.tools").joinpath("sentences.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line]


async def run(plan: Plan, texts: Sequence[str]) -> LoadResult:
    """Runs a load test with requests for the task of the endpoint's model.

    Args:
        plan: Parameters of the test.
        texts: Texts of the requests.

    Raises:
        DeployError: if the endpoint cannot be reached, or its task accepts no lists and the plan
            has more than one text per request.
    """
    seen = _Observations([], Counter(), Counter(), [], [])
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        requests = _requests(plan, texts, await _read_health(session, plan))
        begin = time.perf_counter()
        if plan.rate is None:
            clients = range(plan.concurrency)
            await asyncio.gather(*(_client(session, plan, requests, begin, seen) for _ in clients))
        else:
            await _open_loop(session, plan, requests, begin, seen)
        seconds = time.perf_counter() - begin
    return _summarise(plan, seen, seconds)


def _summarise(plan: Plan, seen: _Observations, seconds: float) -> LoadResult:
    """Computes the result of a load test that took so many seconds."""
    times = np.sort(np.array(seen.latencies_s)) * 1000
    quantiles = _quantiles(seen.latencies_s)
    bounds = [2.0**power for power in range(-1, 16)]
    counts = np.searchsorted(times, bounds, side="right")
    steps = np.diff(np.concatenate([[0], counts]))
    return LoadResult(
        requests=sum(seen.statuses.values()),
        seconds=seconds,
        statuses=dict(seen.statuses),
        texts_per_s=len(times) * plan.texts_per_request / seconds,
        latency_ms=quantiles,
        histogram=tuple(
            (bound, int(count)) for bound, count in zip(bounds, steps, strict=True) if count
        ),
        versions=dict(seen.versions),
        batch_rows=float(np.mean(seen.batch_rows)) if seen.batch_rows else 0.0,
        tokens_per_s=sum(stream.tokens for stream in seen.streams) / seconds,
        first_token_ms=_quantiles([stream.first_s for stream in seen.streams]),
        token_ms=_quantiles([each.token_s for each in seen.streams if each.token_s is not None]),
    )


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Returns quantiles and the largest of times, in milliseconds; empty if there are none."""
    if not seconds:
        return {}
    times = np.array(seconds) * 1000
    found = {f"p{q * 100:g}": float(np.quantile(times, q)) for q in QUANTILES}
    return {**found, "max": float(times.max())}


async def _read_health(session: aiohttp.ClientSession, plan: Plan) -> Mapping[str, Any]:
    """Returns the JSON of the endpoint's `/health`; empty if it is no object.

    Raises:
        DeployError: if the endpoint cannot be reached.
    """
    try:
        async with session.get(f"{plan.url}/health") as answer:
            text = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DeployError(
            f"{plan.url} cannot be reached: {error or type(error).__name__}"
        ) from None
    try:
        health = json.loads(text)
    except ValueError:
        return {}
    return health if isinstance(health, dict) else {}


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests of a load test, whose bodies are sent in turn."""

    url: str
    headers: Mapping[str, str]
    bodies: Sequence[bytes]
    """JSON, encoded before the test, so that its clients do not spend time on it."""
    is_streamed: bool


def _requests(plan: Plan, texts: Sequence[str], model: Mapping[str, Any]) -> _Requests:
    draw = random.Random(plan.seed)
    shuffled = draw.sample(texts, len(texts))
    endpoint = endpoint_of(model.get("task", DEFAULT_TASK))

    def bodies(some: Sequence[str], tokens: int) -> list[Any]:
        return endpoint.bodies(some, model, per_request=plan.texts_per_request, tokens=tokens)

    if endpoint.is_streaming:
        middle = math.log(plan.answer_tokens) - SPREAD**2 / 2
        lengths = [max(1, round(draw.lognormvariate(middle, SPREAD))) for _ in shuffled]
        pairs = zip(shuffled, lengths, strict=True)
        made = [{**body, **STREAM} for text, length in pairs for body in bodies([text], length)]
    else:
        made = bodies(shuffled, plan.answer_tokens)
    headers = {"Content-Type": "application/json", **(plan.headers or {})}
    encoded = [json.dumps(body).encode() for body in made]
    url = f"{plan.url}{endpoint.path}"
    return _Requests(url, headers, encoded, is_streamed=endpoint.is_streaming)


async def _client(
    session: aiohttp.ClientSession,
    plan: Plan,
    requests: _Requests,
    begin: float,
    seen: _Observations,
) -> None:
    number = random.randrange(len(requests.bodies))
    while (now := time.perf_counter()) - begin < plan.seconds:
        await _send(session, requests, number, now, seen)
        number += 1


async def _open_loop(
    session: aiohttp.ClientSession,
    plan: Plan,
    requests: _Requests,
    begin: float,
    seen: _Observations,
) -> None:
    waiting: set[asyncio.Task[None]] = set()
    number = 0
    async for due in _arrivals(plan, begin):
        if len(waiting) >= MAX_IN_FLIGHT:
            seen.statuses["failed"] += 1
            continue
        task = asyncio.create_task(_send(session, requests, number, due, seen))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        number += 1
    await asyncio.gather(*waiting)


async def _arrivals(plan: Plan, begin: float) -> AsyncIterator[float]:
    """Yields the scheduled time of each request, waiting until then. A Poisson process."""
    draw, due = random.Random(plan.seed), begin
    while due - begin < plan.seconds:
        pause = due - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        yield due
        due += draw.expovariate(plan.rate or 1.0)


async def _send(
    session: aiohttp.ClientSession,
    requests: _Requests,
    number: int,
    due: float,
    seen: _Observations,
) -> None:
    body = requests.bodies[number % len(requests.bodies)]
    try:
        async with session.post(requests.url, data=body, headers=requests.headers) as answer:
            if requests.is_streamed and answer.status == OK:
                seen.streams.append(await read_stream(answer.content, due))
            else:
                await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        seen.statuses["failed"] += 1
        return
    seen.statuses[str(answer.status)] += 1
    if answer.status == OK:
        seen.latencies_s.append(time.perf_counter() - due)
        seen.versions[answer.headers.get("x-model-version", "unknown")] += 1
        seen.batch_rows.append(float(answer.headers.get("x-batch-size", 0)))
