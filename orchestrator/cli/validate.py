"""`winnow validate`: checks a job file."""

import typer

from cluster import catalogue
from orchestrator.cli.options import AsJson, JobFile, Settings, print_json
from orchestrator.loading import load_job, unset_secrets


def validate(job: JobFile, settings: Settings = None, as_json: AsJson = False) -> None:
    """Check a job file and print every problem."""
    spec = load_job(job, settings)
    remarks = [*catalogue.choices(spec), *unset_secrets(spec)]
    if as_json:
        print_json({"valid": True, "name": spec.name, "remarks": remarks})
        return
    typer.echo(f"{job} is a valid job: {spec.name}")
    for remark in remarks:
        typer.echo(f"note: {remark}")
