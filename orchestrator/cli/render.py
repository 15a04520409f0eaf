"""`winnow render`: prints the job with all defaults, where each stands, and what `auto` is."""

from collections.abc import Mapping
from typing import Any

import typer
import yaml

from jobs.loader.load import origins
from jobs.loader.source import Document, Path, dotted, parse
from orchestrator.cli.options import AsJson, InventoryFile, JobFile, Settings, print_json
from orchestrator.loading import load_job
from orchestrator.planning import known_inventory, plan_on

MAX_WIDTH = 10_000
"""Characters of a line, so that no text is folded."""


def render(
    job: JobFile,
    settings: Settings = None,
    inventory: InventoryFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the job with all defaults, where each value is set, and what `auto` means."""
    spec = load_job(job, settings)
    nodes = known_inventory(inventory)
    plan = plan_on(spec, nodes) if nodes else None
    reasons = {c.id: c.reason for c in plan.candidates if c.reason} if plan else {}
    values = spec.model_dump(mode="json", exclude_none=True)
    written = origins(job, settings or ())
    if as_json:
        found = {dotted(path): written.origin(path) for path in _leaves(values)}
        print_json({"job": values, "auto": reasons, "origins": found})
        return
    for name, reason in reasons.items():
        typer.echo(f"# auto on {name.split('/')[0]}: {reason}")
    if not reasons and "auto" in (spec.train.precision, spec.train.micro_batch_size):
        typer.echo("# auto is decided for each placement; name nodes with --inventory to see it")
    typer.echo(_annotated(values, written))


def _annotated(values: dict[str, Any], written: Document) -> str:
    """Returns the job as YAML, each value with a comment that says where it is set."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=MAX_WIDTH)
    places, lines = parse(text, "job").positions, text.splitlines()
    for path, value in _leaves(values).items():
        if "\n" not in str(value):  # a comment would become a part of such a text
            lines[places[path].line - 1] += f"  # {written.origin(path)}"
    return "\n".join(lines)


def _leaves(value: Any, path: Path = ()) -> Mapping[Path, Any]:
    """Returns the values that hold no others, by their paths."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[Path, Any] = {}
    for part, each in inner:
        is_leaf = not isinstance(each, dict | list) or not each
        found |= {(*path, part): each} if is_leaf else _leaves(each, (*path, part))
    return found
