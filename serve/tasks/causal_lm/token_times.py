"""Metrics of how soon and how fast a language model writes."""

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import prometheus_client

from serve.tasks.causal_lm.answer import Piece
from serve.tasks.causal_lm.text_engine import TextEngine

FIRST_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2)


class TokenTimes:
    """Times of tokens, and the use of the cache."""

    def __init__(
        self, registry: prometheus_client.CollectorRegistry, generator: TextEngine
    ) -> None:
        fixed: dict[str, Any] = {"registry": registry, "namespace": "winnow_serve"}
        self._first = prometheus_client.Histogram(
            "time_to_first_token_seconds",
            "Time from the complete request body to the first piece of an answer.",
            buckets=FIRST_BUCKETS_S,
            **fixed,
        )
        self._each = prometheus_client.Histogram(
            "time_per_output_token_seconds",
            "Mean time of each token of an answer after its first piece.",
            buckets=TOKEN_BUCKETS_S,
            **fixed,
        )
        use = prometheus_client.Gauge(
            "cache_use", "Share of the cache that the answers being written may fill.", **fixed
        )
        use.set_function(lambda: generator.cache_use)

    async def seen(
        self, pieces: AsyncGenerator[tuple[int, Piece]], begin: float
    ) -> AsyncGenerator[tuple[int, Piece]]:
        """Yields pieces of answers to a request that came at `begin`, and observes their times."""
        first = dict[int, tuple[float, int]]()
        async with contextlib.aclosing(pieces):
            async for index, piece in pieces:
                now = time.perf_counter()
                if index not in first:
                    first[index] = now, piece.tokens
                    self._first.observe(now - begin)
                since, tokens = first[index]
                if piece.finish and piece.tokens > tokens:
                    self._each.observe((now - since) / (piece.tokens - tokens))
                yield index, piece
