"""Times of a language model's streamed answers, as a client sees them."""

import json
import time
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

DONE = b"data: [DONE]"
"""Last event of a stream."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The times of a streamed answer."""

    first_s: float
    """From the request's scheduled time to the first text."""
    token_s: float | None
    """Mean time of each token after the first; None if there is only one."""
    tokens: int


async def read_stream(lines: AsyncIterable[bytes], due: float) -> StreamTimes:
    """Reads the events of an answer to a request that was due at a time.

    Raises:
        aiohttp.ClientPayloadError: if the stream ends before its last event.
    """
    first_s, tokens, last = None, 0, b""
    async for line in lines:
        if not line.startswith(b"data: "):
            continue
        last = line.strip()
        if last == DONE:
            break
        if first_s is None or b'"usage":{' in last:
            event = json.loads(last.removeprefix(b"data: "))
            tokens = (event.get("usage") or {}).get("completion_tokens", 0)
            if first_s is None and any(map(_has_text, event["choices"])):
                first_s = time.perf_counter() - due
    if last != DONE:
        raise aiohttp.ClientPayloadError("the stream has no last event")
    whole_s = time.perf_counter() - due
    if first_s is None:  # an answer without any text
        return StreamTimes(whole_s, None, tokens)
    return StreamTimes(first_s, (whole_s - first_s) / (tokens - 1) if tokens > 1 else None, tokens)


def _has_text(choice: Mapping[str, Any]) -> bool:
    return bool(choice["delta"].get("content"))
