"""`winnow render`: prints the job with all defaults, and the values of `auto`."""

import typer
import yaml

from orchestrator.cli.options import AsJson, InventoryFile, JobFile, Settings, print_json
from orchestrator.loading import load_job
from orchestrator.planning import known_inventory, plan_on


def render(
    job: JobFile,
    settings: Settings = None,
    inventory: InventoryFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the job with all defaults, and the values of `auto` for each placement."""
    spec = load_job(job, settings)
    nodes = known_inventory(inventory)
    plan = plan_on(spec, nodes) if nodes else None
    reasons = {c.id: c.reason for c in plan.candidates if c.reason} if plan else {}
    values = spec.model_dump(mode="json", exclude_none=True)
    if as_json:
        print_json({"job": values, "auto": reasons})
        return
    for name, reason in reasons.items():
        typer.echo(f"# auto on {name.split('/')[0]}: {reason}")
    if not reasons and "auto" in (spec.train.precision, spec.train.micro_batch_size):
        typer.echo("# auto is decided for each placement; name nodes with --inventory to see it")
    typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), nl=False)
