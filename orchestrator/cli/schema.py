"""`winnow schema`: the JSON Schema of job files."""

import sys

from jobs.loader import schema as schemas
from orchestrator.cli.options import AsJson


def schema(as_json: AsJson = True) -> None:
    """Print the JSON Schema of job files, for editors and checks."""
    del as_json  # a schema is JSON in any case
    sys.stdout.write(schemas.schema_text())
