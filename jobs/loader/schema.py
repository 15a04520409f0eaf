"""The JSON Schema of a job file, as committed for editors."""

import json

from jobs.spec import JobSpec

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """The schema as JSON text with a final newline."""
    schema = {"$schema": SCHEMA_ID, **JobSpec.model_json_schema(), "title": "Winnow job"}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
