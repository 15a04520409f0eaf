"""`winnow load`: measures throughput, latency and errors of an endpoint, and checks limits."""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.errors import DeployError
from jobs.spec.quantities import parse_bound, parse_duration
from orchestrator.cli.options import AsJson, out, print_json, table
from serve.tools import load_generator as generator
from serve.tools.load_generator import LoadResult, Plan

BAR = 40
"""Characters of the longest bar."""


def load(
    url: Annotated[
        str, typer.Argument(help="URL of the endpoint's route, such as http://…/reviews.")
    ],
    seconds: Annotated[float, typer.Option(help="Duration in seconds.", min=0.1, max=3600)] = 10.0,
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", help="Clients of a closed loop.", min=1, max=4096)
    ] = 8,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second of an open loop instead.", min=0.01)
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts in a request.", min=1, max=1024)] = 1,
    answer_tokens: Annotated[
        int,
        typer.Option(help="Mean of the most tokens of a language model's answers.", min=1),
    ] = 32,
    texts: Annotated[Path | None, typer.Option(help="File with a text on each line.")] = None,
    token_from: Annotated[
        str | None, typer.Option(help="Environment variable with the bearer token.")
    ] = None,
    p95: Annotated[str | None, typer.Option(help="Fail if p95 is longer, such as 50ms.")] = None,
    p95_ttft: Annotated[
        str | None, typer.Option(help="Fail if the p95 time to the first token is longer.")
    ] = None,
    p95_tpot: Annotated[
        str | None, typer.Option(help="Fail if the p95 time per output token is longer.")
    ] = None,
    errors: Annotated[
        str | None, typer.Option(help="Fail if the error rate breaks it, such as <0.5%.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send sentences to an endpoint and print latencies, timed from when each request was due.

    A language model is asked for streams: also the time to the first token and per token are
    printed.
    """
    limits = {"p95": p95, "p95_ttft": p95_ttft, "p95_tpot": p95_tpot}
    for name, limit in limits.items():
        _check(parse_duration, limit, f"--{name.replace('_', '-')}")
    _check(parse_bound, errors, "--errors")
    plan = Plan(
        url.rstrip("/"),
        seconds,
        concurrency=concurrency,
        rate=rate,
        texts_per_request=batch,
        answer_tokens=answer_tokens,
        headers=_authorization(token_from),
    )
    result = asyncio.run(generator.run(plan, _texts(texts)))
    if as_json:
        print_json(result)
    else:
        show(result)
    broken = broken_promises(result, limits, errors)
    if broken:
        raise DeployError("; ".join(broken))


def broken_promises(
    result: LoadResult, limits: Mapping[str, str | None], errors: str | None
) -> list[str]:
    """Returns a sentence for each limit that the result breaks.

    `limits` are durations for `p95` of the latency, `p95_ttft` and `p95_tpot`.
    """
    broken = []
    if result.requests and result.failed == result.requests:
        statuses = ", ".join(sorted(result.statuses))
        broken.append(f"all {result.requests:,} requests failed (status {statuses})")
    times = {
        "p95": result.latency_ms,
        "p95_ttft": result.first_token_ms,
        "p95_tpot": result.token_ms,
    }
    for name, limit in limits.items():
        if limit is None:
            continue
        limit_ms, found = parse_duration(limit).total_seconds() * 1000, times[name].get("p95")
        if found is None or found > limit_ms:
            shown = "unknown" if found is None else f"{found:.1f} ms"
            broken.append(f"{name} is {shown}, over {limit_ms:g} ms")
    if errors is not None and not parse_bound(errors).holds(result.error_rate):
        broken.append(f"{result.error_rate:.2%} of the requests failed, which is not {errors}")
    return broken


def show(result: LoadResult) -> None:
    """Print a result for people."""
    console = out()
    shown = table("requests", "failed", "texts/s", *result.latency_ms, left=())
    times = (f"{value:.1f} ms" for value in result.latency_ms.values())
    shown.add_row(str(result.requests), str(result.failed), f"{result.texts_per_s:,.0f}", *times)
    console.print(shown)
    if result.first_token_ms:
        tokens = table("tokens", "rate", *result.first_token_ms, left=("tokens",))
        for name, found, rate in (
            ("first token", result.first_token_ms, ""),
            ("each further token", result.token_ms, f"{result.tokens_per_s:,.0f}/s"),
        ):
            tokens.add_row(name, rate, *(f"{value:.1f} ms" for value in found.values()))
        console.print(tokens)
    largest = max((count for _, count in result.histogram), default=1)
    for bound, count in result.histogram:
        bar = "█" * max(1, round(BAR * count / largest))
        console.print(f"{'≤ ' + format(bound, 'g'):>10} ms  {bar} {count}", markup=False)
    statuses = ", ".join(f"{name} x {count}" for name, count in sorted(result.statuses.items()))
    versions = ", ".join(f"{name} x {count}" for name, count in sorted(result.versions.items()))
    console.print(f"status {statuses}; version {versions or 'unknown'}", markup=False)
    if result.batch_rows:
        console.print(f"mean batch size {result.batch_rows:.1f} texts")


def _check(parse: Callable[[str], Any], text: str | None, option: str) -> None:
    try:
        if text is not None:
            parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _authorization(token_from: str | None) -> dict[str, str]:
    if token_from is None:
        return {}
    token = os.environ.get(token_from)
    if not token:
        raise DeployError(f"--token-from names {token_from}, which is not set")
    return {"Authorization": f"Bearer {token}"}


def _texts(path: Path | None) -> list[str]:
    if path is None:
        return generator.sentences()
    try:
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"--texts {path} cannot be read: {error}") from None
    if not found:
        raise DeployError(f"--texts {path} has no line with text")
    return found
