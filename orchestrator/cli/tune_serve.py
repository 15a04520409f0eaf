"""`winnow tune-serve`: finds the cheapest way to serve a model within its latency target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from cluster import catalogue, prices, session
from cluster.inventory import Inventory, Node
from jobs.errors import DeployError, InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.serve import ServeSpec
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    JobFile,
    Settings,
    out,
    print_json,
    results_only,
    table,
)
from orchestrator.execution import quiet_libraries
from orchestrator.loading import load_served, storage_of
from orchestrator.records import registry
from serve.engines.timing_curve import Curve
from serve.tools import cost_frontier
from serve.tools.cost_frontier import Option

SHOWN = 10
"""Most options that are printed."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The measured curves, and the options within the latency target, the cheapest first."""

    curves: tuple[Curve, ...]
    options: tuple[Option, ...]
    limit_ms: float | None


def tune_serve(
    job: JobFile,
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    settings: Settings = None,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Measure every engine on every kind of device; print the cheapest options within the SLO."""
    spec, serving = load_served(job, settings, "tune")
    if not spec.task.has_scoring_engines:
        raise DeployError(
            f"{spec.task.name}: tune-serve measures engines that score rows, and this task has none"
        )
    model = registry.read(storage_of(spec), spec.name, version)
    quiet_libraries()
    with results_only(), session.connect(address=address, insecure_local=insecure_local):
        from cluster import discovery
        from serve.tools import engine_benchmark

        found = places(serving, discovery.discover())
        curves = engine_benchmark.curves(
            model, serving, found, lambda text: out().print(text, markup=False)
        )
    slo = serving.slo.p95_latency if serving.slo else None
    limit_ms = None if slo is None else 1000 * slo.total_seconds()
    tuned = Tuned(curves, cost_frontier.options(curves, hourly(spec, found), limit_ms), limit_ms)
    if as_json:
        print_json(tuned)
    else:
        show(tuned)
    if not tuned.options:
        raise InfeasibleError(why_none(tuned, serving.accelerators))


def why_none(tuned: Tuned, asked: AcceleratorRequest) -> str:
    """Returns the reason why there is no option."""
    if not tuned.curves:
        return f"no node here has {asked}; name other serve.accelerators, or add nodes"
    refusals = [f"{c.accelerators} {c.engine}: {c.refusal}" for c in tuned.curves if c.refusal]
    if len(refusals) == len(tuned.curves):
        return (
            f"no engine can serve here ({'; '.join(refusals)}); set serve.engine and"
            " serve.precision to auto"
        )
    return (
        f"no device here keeps serve.slo.p95_latency of {tuned.limit_ms:g} ms; raise it, or add"
        " faster devices"
    )


def places(serving: ServeSpec, inventory: Inventory) -> list[tuple[AcceleratorRequest, Node]]:
    """Returns one device of each kind with a node that has it; of CPUs, the job's core count."""
    wanted = serving.accelerators
    nodes: dict[AcceleratorRequest, Node] = {}
    for node in inventory.nodes:
        is_wanted = catalogue.find(wanted.name).name == node.sku
        request = AcceleratorRequest(node.sku, wanted.count if is_wanted else 1)
        if node.devices >= request.count:
            nodes.setdefault(request, node)
    return list(nodes.items())


def hourly(
    spec: JobSpec, found: Sequence[tuple[AcceleratorRequest, Node]]
) -> dict[str, float | None]:
    """Returns the USD per hour of each place's devices; None where no price is known."""
    book = prices.read_book()
    costs: dict[str, float | None] = {}
    for request, node in found:
        price = book.price(catalogue.find(node.sku), spec.hourly_prices, spot=node.spot)
        costs[str(request)] = None if price is None else price * request.count
    return costs


def show(tuned: Tuned) -> None:
    """Print the best options, the refused engines, and the lines for the job file."""
    console = out()
    for curve in tuned.curves:
        if curve.refusal:
            text = f"{curve.accelerators} {curve.engine}: refused, {curve.refusal}"
            console.print(text, markup=False)
    if not tuned.options:
        return
    rows = table(
        "devices",
        "engine",
        "batch",
        "texts/s",
        "latency",
        "per million",
        left=("devices", "engine"),
    )
    for option in tuned.options[:SHOWN]:
        cost = option.usd_per_million
        rows.add_row(
            option.accelerators,
            option.engine,
            str(option.max_batch_size),
            f"{option.texts_per_s:,.0f}",
            f"{option.latency_ms:.1f} ms",
            "" if cost is None else f"${cost:.3g}",
        )
    console.print(rows)
    best = tuned.options[0]
    console.print(
        "serve:\n"
        f"  accelerators: {best.accelerators}\n  engine: {best.engine}\n"
        f"  batching: {{max_batch_size: {best.max_batch_size}}}",
        markup=False,
    )
