"""`winnow schema`: prints the JSON Schema of job files."""

import sys
from typing import Annotated

import typer

from jobs.loader import reference as job_reference
from jobs.loader import schema as schemas
from orchestrator.cli.options import AsJson

Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the reference of the job file as a page instead.")
]
Endpoint = Annotated[
    bool, typer.Option("--endpoint", help="Print the reference of endpoints as a page instead.")
]


def schema(markdown: Markdown = False, endpoint: Endpoint = False, as_json: AsJson = False) -> None:
    """Print the JSON Schema of job files, for editors and checks."""
    if endpoint:
        from serve.tools import openapi_reference  # takes seconds to import

        sys.stdout.write(openapi_reference.reference_text())
        return
    text = job_reference.reference_text() if markdown and not as_json else schemas.schema_text()
    sys.stdout.write(text)
