"""A new version takes over step by step, watched; or the old one stays."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from jobs.errors import DeployError
from jobs.spec.serve import GateRule, RolloutSpec, ServeSpec
from serve.deploy import haproxy_client, routing
from serve.deploy.rollout import Traffic, reasons_against
from serve.deploy.routing import Route
from serve.http.auth import accepted_tokens
from serve.tasks.comparison import Comparison
from serve.tasks.registry import endpoint_of
from serve.tools import load_generator
from serve.version import ModelVersion

ROUND_S = 5.0
"""How long both versions are asked by turns before they are compared."""
ASK_TIMEOUT_S = 60.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two versions."""

    version: ModelVersion
    application: str
    url: str
    """Of the version itself, whatever the public route answers with."""


def release(spec: ServeSpec, rollout: RolloutSpec, old: Side, new: Side, tell: Tell) -> None:
    """Shift the route from the old version to the new one.

    Raises DeployError with the reasons when the gate stops it; the old version answers everything
    again by then.
    """
    headers, hold_s = _authorization(spec), rollout.hold.total_seconds()
    quality, samples = _judge(old, new, headers)
    texts = samples or load_generator.sentences()
    told = (
        quality.summary
        if quality
        else "not compared on evaluation rows: there are none, or labels differ"
    )
    _watch(
        spec,
        rollout,
        (old, new),
        quality,
        texts,
        headers,
        min(ROUND_S, hold_s),
    )
    tell(f"{new.version.id} passes the gate beside {old.version.id}, {told}")
    rate = spec.limits.requests_per_second
    route = Route(old.version.id, rate=rate, model=old.version.name)
    try:
        for weight in rollout.steps:
            haproxy_client.write({spec.route: routing.tried(route, new.version.id, weight)})
            tell(f"{new.version.id} answers {weight}% of {spec.route}")
            if weight < 100 or len(rollout.steps) == 1:
                _watch(
                    spec, rollout, (old, new), quality, texts, headers, rollout.hold.total_seconds()
                )
    except BaseException:
        haproxy_client.write({spec.route: routing.rolled_back(route)})
        tell(f"rolled back: {old.version.id} answers all of {spec.route}")
        raise
    haproxy_client.write({spec.route: replace(route, stable=new.version.id)})


def at_once(spec: ServeSpec, side: Side, *, is_new: bool) -> None:
    """Let a version answer all of the route, compared with none.

    Raises DeployError when it is new there and does not keep the slo, before anybody else asks it.
    """
    if is_new and spec.slo:
        _hold_to_slo(spec, side)
    rate, version = spec.limits.requests_per_second, side.version
    haproxy_client.write({spec.route: Route(version.id, rate=rate, model=version.name)})


def _hold_to_slo(spec: ServeSpec, new: Side) -> None:
    texts = endpoint_of(new.version.task).evaluation_texts(new.version)
    span = _ask_for(new.url, ROUND_S, texts or load_generator.sentences(), _authorization(spec))
    seen = Traffic(span.requests, span.failed, span.latency_ms.get("p95"))
    reasons = reasons_against([GateRule("slo")], spec.slo, None, seen, seen)
    if reasons:
        raise DeployError(
            f"version {new.version.id} is not deployed: {'; '.join(reasons)}; it stays published:"
            " allow more in serve.slo and `winnow deploy` it, or see `winnow tune-serve`"
        )


def _watch(
    spec: ServeSpec,
    rollout: RolloutSpec,
    sides: tuple[Side, Side],
    quality: Comparison | None,
    texts: Sequence[str],
    headers: dict[str, str],
    seconds: float,
) -> None:
    """Ask both versions by turns for so long, and count what everybody else asked."""
    old, new = sides
    begin, before = time.monotonic(), [haproxy_client.counts(side.application) for side in sides]
    while True:
        spans = [_ask_for(side.url, ROUND_S / 2, texts, headers) for side in sides]
        after = [haproxy_client.counts(side.application) for side in sides]
        seen = [
            Traffic(now[0] - then[0], now[1] - then[1], span.latency_ms.get("p95"))
            for now, then, span in zip(after, before, spans, strict=True)
        ]
        reasons = reasons_against(rollout.gate, spec.slo, quality, seen[0], seen[1])
        if reasons:
            raise DeployError(
                f"version {new.version.id} does not take over from {old.version.id}:"
                f" {'; '.join(reasons)}"
            )
        left_s = seconds - (time.monotonic() - begin)
        if left_s <= 0:
            return
        time.sleep(min(left_s, ROUND_S))


def _ask_for(
    url: str, seconds: float, texts: Sequence[str], headers: dict[str, str]
) -> load_generator.LoadResult:
    plan = load_generator.Plan(
        url, seconds, concurrency=1, headers=headers, timeout_s=ASK_TIMEOUT_S
    )
    return asyncio.run(load_generator.run(plan, texts))


def _judge(
    old: Side, new: Side, headers: dict[str, str]
) -> tuple[Comparison | None, Sequence[str]]:
    """Both versions on evaluation rows as their task compares them, and texts of these."""
    endpoint, urls = endpoint_of(old.version.task), {s.version.id: s.url for s in (old, new)}

    def ask(version: ModelVersion, body: Any) -> Any:
        url = urls[version.id]
        try:
            answer = httpx.post(
                f"{url}{endpoint.path}", json=body, headers=headers, timeout=ASK_TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise DeployError(
                f"{url} does not answer evaluation rows: {error or type(error).__name__}"
            ) from None
        if answer.status_code != httpx.codes.OK:
            raise DeployError(f"{url} answers evaluation rows with status {answer.status_code}")
        return answer.json()

    return endpoint.compare(old.version, new.version, ask)


def _authorization(spec: ServeSpec) -> dict[str, str]:
    tokens = accepted_tokens(spec)
    if spec.auth and not tokens:
        raise DeployError(
            "a gate asks the endpoint, and serve.auth.tokens_file has only hashes; name a variable"
            " with an accepted token in serve.auth.tokens_from too"
        )
    return {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
