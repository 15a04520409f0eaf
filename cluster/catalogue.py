"""The catalogue of accelerators: one name each, memory, native precisions, a typical price."""

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
"""Words of a name that are ignored, because they distinguish no SKU from another."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance type of a cloud."""

    instance: str
    """Type name, such as g6.xlarge."""
    devices: int
    """Accelerators, or virtual cores for `cpu`."""


@dataclass(frozen=True, slots=True)
class Sku:
    """An accelerator model with its memory and form factor."""

    name: str
    aliases: tuple[str, ...]
    memory_gib: float | None
    """Device memory; None for cpu, where the node's memory counts."""
    bandwidth_gb_per_s: float | None
    interconnect_gb_per_s: float | None
    """Bandwidth of NVLink or a similar link, both directions together; None with PCIe only."""
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
    """The smallest AWS instance type with it; None where AWS has none."""


@cache
def catalogue() -> dict[str, Sku]:
    """Returns every known SKU by name."""
    text = (Path(__file__).parent / "accelerators.json").read_text(encoding="utf-8")
    rows = json.loads(text)["accelerators"]
    return {sku.name: sku for sku in TypeAdapter(tuple[Sku, ...]).validate_python(rows)}


def peak_tflops(name: str, precision: Precision) -> float | None:
    """Returns the dense peak of a SKU in TFLOP/s; None for a CPU or where no figure is known.

    Tensor cores multiply matrices in tf32 at half the rate of 16-bit formats; a SKU without tf32
    computes in fp32 instead.
    """
    sku = catalogue().get(name)
    if sku is None:
        return None
    if precision in ("fp16", "bf16"):
        return sku.tensor_tflops
    if precision == "tf32" and "tf32" in sku.precisions and sku.tensor_tflops is not None:
        return sku.tensor_tflops / 2
    return sku.fp32_tflops


def known(name: str) -> Sku | None:
    """Returns the SKU for a name as people or drivers write it, or None.

    The order of the words in the name does not matter.
    """
    return _by_plain_name().get(_plain(name)) or _by_words().get(_words(name))


def find(name: str) -> Sku:
    """Returns the SKU for a name as people type it.

    Raises:
        InfeasibleError: for an unknown name, with the most similar known name.
    """
    sku = known(name)
    if sku is None:
        near = most_similar(_plain(name), _by_plain_name())
        known_ones = f"known: {', '.join(catalogue())}"
        hint = f"did you mean {_by_plain_name()[near].name}?" if near else known_ones
        raise InfeasibleError(f"accelerator {name!r} is not known; {hint}")
    return sku


def choice(name: str) -> str | None:
    """Returns a sentence on an ambiguous name: the SKU it selects, and the names of the others.

    A name matches a SKU if all its words are in the SKU's name or in one of its aliases. Returns
    None if only one SKU matches.
    """
    taken, words = known(name), _words(name)
    fitting = [sku.name for sku in catalogue().values() if _has_words(sku, words)]
    others = [other for other in fitting if taken and other != taken.name]
    if taken is None or not others or _plain(name) == _plain(taken.name):
        return None
    return f"{name} selects {taken.name}; write {' or '.join(others)} if you mean another model"


def served_skus(spec: ServeSpec) -> list[str]:
    """Returns the SKUs on which replicas may run, the preferred first.

    Raises:
        InfeasibleError: for an unknown name.
    """
    return [find(found.name).name for found in (spec.accelerators, *spec.fallback)]


def auto_precision(sku: Sku) -> tuple[Precision, str]:
    """Returns the precision that `auto` selects on a SKU, and the reason."""
    if sku.name == CPU:
        return "fp32", "fp32 on a CPU"
    if "bf16" in sku.precisions:
        return "bf16", f"bf16 is native on {sku.name}"
    return "fp16", f"{sku.name} has no bf16, so fp16 with loss scaling"


def accelerator_rules(spec: JobSpec) -> Iterator[Violation]:
    """Yields unknown accelerator names, and precisions that an accelerator lacks."""
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
                f"precision is {wanted}, which {sku.name} lacks; use {native} or leave it out",
            )
    for section, names in (("prices", spec.prices), ("owned", spec.owned)):
        for name in names:
            try:
                find(name)
            except InfeasibleError as error:
                yield Violation((section, name), str(error))
    yield from _serving_rules(spec)


def _serving_rules(spec: JobSpec) -> Iterator[Violation]:
    """Yields fallbacks that cannot replace a replica's devices, and targets of unused SKUs."""
    serve = spec.serve
    if serve is None:
        return
    first = serve.accelerators
    seen = [_name(first.name)]
    for number, request in enumerate(serve.fallback):
        path, name = ("serve", "fallback", number), _name(request.name)
        if CPU in (seen[0], name):
            yield Violation(
                path, "cores and accelerators cannot replace each other; remove this fallback"
            )
        elif name in seen:
            yield Violation(path, f"{name} is listed twice; remove one")
        elif request.count != first.count:
            message = f"its count must be that of {first}; use {name}:{first.count}"
            yield Violation(path, message)
        seen.append(name)
    for given in serve.autoscaling.targets:
        if _name(given) not in seen:
            message = (
                f"no replica runs on it; use one of accelerators and fallback: {', '.join(seen)}"
            )
            yield Violation(("serve", "autoscaling", "targets", given), message)


def _name(given: str) -> str:
    """Returns the SKU's name, or an unknown name as given, which `accelerator_rules` reports."""
    sku = known(given)
    return sku.name if sku else given


def choices(spec: JobSpec) -> tuple[str, ...]:
    """Returns a sentence for each ambiguous accelerator name in a job."""
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
