"""`winnow schema`: prints the JSON Schema of job files, and of what commands print."""

import importlib
import json
import sys
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from jobs.errors import RunError
from jobs.loader import reference as job_reference
from jobs.loader import schema as schemas
from orchestrator.cli.commands import COMMANDS
from orchestrator.cli.options import AsJson

Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the reference of the job file as a page instead.")
]
Endpoint = Annotated[
    bool, typer.Option("--endpoint", help="Print the reference of endpoints as a page instead.")
]
KNOWN = (
    *("ls", "logs", "watch", "compare", "cancel", "rm", "queue", "endpoints", "undeploy", "deploy"),
    *(f"models {name}" for name in ("list", "show", "promote", "rollback", "push")),
)
"""Commands whose results have a schema."""
Command = Annotated[
    str | None,
    typer.Option("--of", help="Print the JSON Schema of what this command prints with --json."),
]


def schema(
    markdown: Markdown = False,
    endpoint: Endpoint = False,
    command: Command = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of job files, for editors and checks."""
    if command:
        found: TypeAdapter[Any] = TypeAdapter(printed_by(command))
        sys.stdout.write(json.dumps(found.json_schema(mode="serialization"), indent=2) + "\n")
        return
    if endpoint:
        from serve.tools import openapi_reference  # takes seconds to import

        sys.stdout.write(openapi_reference.reference_text())
        return
    text = job_reference.reference_text() if markdown and not as_json else schemas.schema_text()
    sys.stdout.write(text)


def printed_by(command: str) -> Any:
    """Returns the type of what a command prints with --json.

    Raises:
        RunError: if there is no such command, or its result has no schema.
    """
    if command not in KNOWN:
        raise RunError(
            f"there is no schema of what {command!r} prints; there are those of {', '.join(KNOWN)}"
        )
    module, _, _ = COMMANDS[command.split()[0]][0].partition(":")
    return importlib.import_module(f"{__package__}.{module}").PRINTS[command]
