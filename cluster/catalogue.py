"""Accelerators under one name each, with memory, native precisions and a typical price."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from jobs.errors import InfeasibleError
from jobs.loader.words import most_similar
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.rules import Path as FieldPath
from jobs.spec.rules import Violation
from jobs.spec.serve import ServeSpec
from jobs.spec.train import Precision

CPU = "cpu"
"""The SKU whose devices are processor cores."""
MAKERS = ("nvidia", "tesla", "geforce")
"""Words that tell no SKU from another."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A rented machine."""

    instance: str
    """Its type, such as g6.xlarge."""
    devices: int
    """Accelerators in it, or virtual cores of `cpu`."""


@dataclass(frozen=True, slots=True)
class Sku:
    """An accelerator model with its memory and form factor."""

    name: str
    aliases: tuple[str, ...]
    memory_gib: float | None
    """Device memory; None for cpu, where the node's memory counts."""
    bandwidth_gb_per_s: float | None
    interconnect_gb_per_s: float | None
    """NVLink or its like, both directions together; None where devices have PCIe alone."""
    fp32_tflops: float | None
    tensor_tflops: float | None
    """Dense fp16 matrix rate."""
    compute_capability: str | None
    precisions: tuple[Precision, ...]
    """Number formats that are native."""
    spec_source: str | None
    price_usd_per_hour: float | None
    """Typical on-demand price of one device; None where no public price is known."""
    price_source: str | None
    aws: Instance | None
    """The smallest rented on AWS with it; None where AWS has none."""


@cache
def catalogue() -> dict[str, Sku]:
    """Every known SKU by name."""
    text = (Path(__file__).parent / "accelerators.json").read_text(encoding="utf-8")
    rows = json.loads(text)["accelerators"]
    return {sku.name: sku for sku in TypeAdapter(tuple[Sku, ...]).validate_python(rows)}


def peak_tflops(name: str, precision: Precision) -> float | None:
    """Dense peak of a SKU in a precision; None for a CPU and where no figure is known."""
    sku = catalogue().get(name)
    if sku is None:
        return None
    return sku.tensor_tflops if precision in ("fp16", "bf16") else sku.fp32_tflops


def known(name: str) -> Sku | None:
    """The SKU for a name as people and drivers write it, in any order of its words, else None."""
    return _by_plain_name().get(_plain(name)) or _by_words().get(_words(name))


def find(name: str) -> Sku:
    """The SKU for a name as people type it; InfeasibleError suggests the nearest."""
    sku = known(name)
    if sku is None:
        near = most_similar(_plain(name), _by_plain_name())
        known_ones = f"known: {', '.join(catalogue())}"
        hint = f"did you mean {_by_plain_name()[near].name}?" if near else known_ones
        raise InfeasibleError(f"accelerator {name!r} is not known; {hint}")
    return sku


def choice(name: str) -> str | None:
    """A sentence on a name that fits several SKUs: which one is taken, and how to write another.

    A name fits a SKU if the SKU's name or one of its aliases has all of its words.
    """
    taken, words = known(name), _words(name)
    fitting = [sku.name for sku in catalogue().values() if _has_words(sku, words)]
    others = [other for other in fitting if taken and other != taken.name]
    if taken is None or not others or _plain(name) == _plain(taken.name):
        return None
    return f"{name} is taken as {taken.name}; write {' or '.join(others)} if that is meant"


def served_skus(spec: ServeSpec) -> list[str]:
    """What replicas may be on, the preferred first; InfeasibleError for a name not known."""
    return [find(found.name).name for found in (spec.accelerators, *spec.fallback)]


def auto_precision(sku: Sku) -> tuple[Precision, str]:
    """The precision that `auto` means on a SKU, and why."""
    if sku.name == CPU:
        return "fp32", "fp32 on a CPU"
    if "bf16" in sku.precisions:
        return "bf16", f"bf16 is native on {sku.name}"
    return "fp16", f"{sku.name} has no bf16, so fp16 with loss scaling"


def accelerator_rules(spec: JobSpec) -> Iterator[Violation]:
    """Names that are not known, and precisions that an accelerator does not have."""
    for path, request in _requests(spec):
        try:
            sku = find(request.name)
        except InfeasibleError as error:
            yield Violation(path, str(error))
            continue
        wanted = spec.train.precision if path[0] == "resources" else None
        if path[0] == "serve" and spec.serve:
            wanted = spec.serve.precision
        if wanted not in (None, "auto", *sku.precisions):
            native = ", ".join(sku.precisions)
            yield Violation(
                path,
                f"{wanted} is asked for, which {sku.name} lacks; use {native} or leave it out",
            )
    for section, names in (("prices", spec.prices), ("owned", spec.owned)):
        for name in names:
            try:
                find(name)
            except InfeasibleError as error:
                yield Violation((section, name), str(error))
    yield from _serving_rules(spec)


def _serving_rules(spec: JobSpec) -> Iterator[Violation]:
    """Fallbacks that cannot take a replica's place, and targets of what no replica is on."""
    serve = spec.serve
    if serve is None:
        return
    first = serve.accelerators
    seen = [_name(first.name)]
    for number, request in enumerate(serve.fallback):
        path, name = ("serve", "fallback", number), _name(request.name)
        if CPU in (seen[0], name):
            yield Violation(
                path, "cores and accelerators cannot take each other's place; remove it"
            )
        elif name in seen:
            yield Violation(path, f"{name} is listed already; remove one")
        elif request.count != first.count:
            message = f"a replica has {first.count} of {first.name}; use {name}:{first.count}"
            yield Violation(path, message)
        seen.append(name)
    for given in serve.autoscaling.targets:
        if _name(given) not in seen:
            message = f"no replica is on it; accelerators and fallback name {', '.join(seen)}"
            yield Violation(("serve", "autoscaling", "targets", given), message)


def _name(given: str) -> str:
    """Of the SKU, or as given where it is not known, which is told elsewhere."""
    sku = known(given)
    return sku.name if sku else given


def choices(spec: JobSpec) -> tuple[str, ...]:
    """A sentence for each accelerator name in a job that fits several SKUs."""
    names = [request.name for _, request in _requests(spec)]
    names += [*spec.prices, *spec.owned]
    if spec.serve:
        names += spec.serve.autoscaling.targets
    found = (choice(name) for name in dict.fromkeys(names))
    return tuple(sentence for sentence in found if sentence)


def _requests(spec: JobSpec) -> Iterator[tuple[FieldPath, AcceleratorRequest]]:
    for place, placement in spec.resources.placements if spec.resources else ():
        yield ("resources", *place, "accelerators"), placement.accelerators
    if spec.serve:
        yield ("serve", "accelerators"), spec.serve.accelerators
        for number, request in enumerate(spec.serve.fallback):
            yield ("serve", "fallback", number), request


@cache
def _by_plain_name() -> dict[str, Sku]:
    skus = catalogue().values()
    return {_plain(alias): sku for sku in skus for alias in (sku.name, *sku.aliases)}


@cache
def _by_words() -> dict[frozenset[str], Sku]:
    skus = catalogue().values()
    return {_words(alias): sku for sku in skus for alias in (sku.name, *sku.aliases)}


def _plain(name: str) -> str:
    return re.sub(r"nvidia|[\s_-]", "", name.lower())


def _has_words(sku: Sku, words: frozenset[str]) -> bool:
    return any(words <= _words(alias) for alias in (sku.name, *sku.aliases))


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s_-]+", name.lower())) - frozenset(MAKERS)
