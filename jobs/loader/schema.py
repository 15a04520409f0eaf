"""The JSON Schema of a job file for editors, and Markdown tables of a schema's fields."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest, Cadence, format_duration
from jobs.spec.serve import GateRule

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Writes default values in the notation of job files."""

    def encode_default(self, dft: Any) -> Any:
        """Returns a default in the notation of job files."""
        if isinstance(dft, timedelta):
            return format_duration(dft)
        if isinstance(dft, tuple) and any(isinstance(part, GateRule) for part in dft):
            return [str(part) for part in dft]
        if isinstance(dft, Cadence | AcceleratorRequest):
            return str(dft)
        return super().encode_default(dft)


def job_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a job file."""
    return JobSpec.model_json_schema(schema_generator=_Generator)


def fields_table(section: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a JSON Schema as the lines of a Markdown table."""
    needed = section.get("required", ())
    rows = [
        _row(name, field, is_needed=name in needed)
        for name, field in section.get("properties", {}).items()
    ]
    return ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def _row(name: str, field: dict[str, Any], *, is_needed: bool) -> str:
    kind, default = type_name(field), "`null`"
    if is_needed:
        default = "`required`"
    elif isinstance(field.get("default"), dict):
        default = f"see {kind}"
    elif "default" in field:
        default = f"`{json.dumps(field['default'])}`"
    meaning = " ".join(str(field.get("description", "")).split())
    return f"| `{name}` | {kind} | {default} | {meaning} |"


def type_name(field: Mapping[str, Any]) -> str:
    """Returns a field's type in words."""
    if "$ref" in field:
        return str(field["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in field:
        return " or ".join(type_name(option) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "items" in field and "$ref" in str(field["items"]):
        return f"array of {type_name(field['items'])}"
    return f"`{field['const']}`" if "const" in field else str(field.get("type", "any"))


def schema_text() -> str:
    """Returns the schema as JSON text with a final newline."""
    schema = {
        "$schema": SCHEMA_ID,
        **job_schema(),
        "title": "Winnow job",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
