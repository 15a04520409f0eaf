"""Rolls out a new version: shifts requests to it in steps while the gate checks it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from jobs.errors import DeployError, RolloutStoppedError
from jobs.spec.serve import GateRule, RolloutSpec, ServeSpec
from serve.deploy import haproxy_client, routing
from serve.deploy.rollout import Traffic, grown, reasons_against
from serve.deploy.routing import Route
from serve.http.auth import accepted_tokens
from serve.tasks.comparison import Comparison
from serve.tasks.registry import endpoint_of
from serve.tools import load_generator
from serve.version import ModelVersion

ROUND_S = 5.0
"""Duration of the gate's requests to both versions before each evaluation."""
REQUEST_TIMEOUT_S = 60.0

Log = Callable[[str], None]
"""Receives a line for the user."""


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    """A version that is running, with its own URL."""

    version: ModelVersion
    application: str
    url: str
    """URL of this version, which does not change with the public route."""


def roll_out(
    spec: ServeSpec, rollout: RolloutSpec, old: DeployedVersion, new: DeployedVersion, log: Log
) -> None:
    """Shifts the route from the old version to the new one in the steps of the rollout.

    Raises:
        RolloutStoppedError: if the gate stops the new version. The old version then
            answers all requests of the route.
    """
    headers, hold_s = _authorization(spec), rollout.hold.total_seconds()
    quality, samples = _compare(old, new, headers)
    texts = samples or load_generator.sentences()
    compared = (
        quality.summary
        if quality
        else "not compared on evaluation rows: there are none, or task or labels differ"
    )
    _check_gate(spec, rollout, (old, new), quality, texts, headers, min(ROUND_S, hold_s))
    log(f"{new.version.id} passes the gate against {old.version.id}, {compared}")
    rate = spec.limits.requests_per_second
    route = Route(old.version.id, rate=rate, model=old.version.name)
    try:
        for weight in rollout.steps:
            haproxy_client.write({spec.route: routing.with_canary(route, new.version.id, weight)})
            log(f"{new.version.id} answers {weight}% of {spec.route}")
            if weight < 100 or len(rollout.steps) == 1:
                _check_gate(spec, rollout, (old, new), quality, texts, headers, hold_s)
    except BaseException:
        haproxy_client.write({spec.route: route})
        log(f"rolled back: {old.version.id} answers all of {spec.route}")
        raise
    haproxy_client.write({spec.route: replace(route, stable=new.version.id)})


def switch(spec: ServeSpec, deployed: DeployedVersion, *, is_new: bool) -> None:
    """Sends all requests of the route to a version at once, without a comparison.

    Args:
        spec: The job's `serve` section.
        deployed: The version.
        is_new: True if the route does not have this version yet; it is then checked against the slo
            before it receives requests of clients.

    Raises:
        DeployError: if a new version breaks the slo.
    """
    if is_new and spec.slo:
        _check_slo(spec, deployed)
    rate, version = spec.limits.requests_per_second, deployed.version
    haproxy_client.write({spec.route: Route(version.id, rate=rate, model=version.name)})


def _check_slo(spec: ServeSpec, new: DeployedVersion) -> None:
    texts = endpoint_of(new.version.task).evaluation_texts(new.version)
    texts = texts or load_generator.sentences()
    load = _send_load(new.url, ROUND_S, texts, _authorization(spec))
    traffic = _traffic((load.requests, load.failed), load)
    reasons = reasons_against([GateRule("slo")], spec.slo, None, traffic, traffic)
    if reasons:
        raise DeployError(
            f"version {new.version.id} is not deployed: {'; '.join(reasons)}; it stays published:"
            " relax serve.slo and `winnow deploy` it again, or see `winnow tune-serve`"
        )


def _check_gate(
    spec: ServeSpec,
    rollout: RolloutSpec,
    versions: tuple[DeployedVersion, DeployedVersion],
    quality: Comparison | None,
    texts: Sequence[str],
    headers: dict[str, str],
    seconds: float,
) -> None:
    """Evaluates the gate for `seconds`: sends requests to both versions in turn.

    HAProxy's counters add the requests of clients.

    Raises:
        RolloutStoppedError: as soon as the new version breaks a rule.
    """
    old, new = versions
    begin = time.monotonic()
    readings = [[haproxy_client.counts(version.application)] for version in versions]
    while True:
        loads = [_send_load(v.url, ROUND_S / 2, texts, headers) for v in versions]
        for version, known in zip(versions, readings, strict=True):
            known.append(haproxy_client.counts(version.application))
        traffic = [
            _traffic(grown(known), load) for known, load in zip(readings, loads, strict=True)
        ]
        reasons = reasons_against(rollout.gate, spec.slo, quality, traffic[0], traffic[1])
        if reasons:
            raise RolloutStoppedError(
                f"version {new.version.id} does not take over from {old.version.id}:"
                f" {'; '.join(reasons)}"
            )
        remaining_s = seconds - (time.monotonic() - begin)
        if remaining_s <= 0:
            return
        time.sleep(min(remaining_s, ROUND_S))


def _traffic(counts: tuple[int, int], load: load_generator.LoadResult) -> Traffic:
    """Returns the counts of requests and failures with the times of the gate's own requests."""
    return Traffic(
        *counts,
        load.latency_ms.get("p95"),
        first_token_p95_ms=load.first_token_ms.get("p95"),
        token_p95_ms=load.token_ms.get("p95"),
    )


def _send_load(
    url: str, seconds: float, texts: Sequence[str], headers: dict[str, str]
) -> load_generator.LoadResult:
    plan = load_generator.Plan(
        url, seconds, concurrency=1, headers=headers, timeout_s=REQUEST_TIMEOUT_S
    )
    return asyncio.run(load_generator.run(plan, texts))


def _compare(
    old: DeployedVersion, new: DeployedVersion, headers: dict[str, str]
) -> tuple[Comparison | None, Sequence[str]]:
    """Returns the task's comparison of both versions on evaluation rows, and the rows' texts.

    Versions of different tasks are not compared.
    """
    if old.version.task != new.version.task:
        return None, ()
    endpoint, urls = endpoint_of(old.version.task), {v.version.id: v.url for v in (old, new)}

    def send(version: ModelVersion, body: Any) -> Any:
        url = urls[version.id]
        try:
            answer = client.post(f"{url}{endpoint.path}", json=body)
        except httpx.HTTPError as error:
            raise DeployError(
                f"{url} does not answer evaluation rows: {error or type(error).__name__}"
            ) from None
        if answer.status_code != httpx.codes.OK:
            raise DeployError(f"{url} answers evaluation rows with status {answer.status_code}")
        return answer.json()

    with httpx.Client(headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        return endpoint.compare(old.version, new.version, send)


def _authorization(spec: ServeSpec) -> dict[str, str]:
    tokens = accepted_tokens(spec)
    if spec.auth and not tokens:
        raise DeployError(
            "the gate sends requests to the endpoint, but serve.auth.tokens_file has only hashes of"
            " tokens; set serve.auth.tokens_from to a variable with an accepted token"
        )
    return {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
