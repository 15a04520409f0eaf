"""The JSON Schema of a job file for editors, and the same as a page for people."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from jobs.spec import JobSpec, task_registry
from jobs.spec.quantities import Cadence, format_duration
from jobs.spec.serve import GateRule
from jobs.spec.support import USES

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


REFERENCE_HEAD = """# The job file

Generated from the specification by `make schema`; `job.schema.json` is the same for editors. Every
section but `version`, `name`, `model` and `data` may be left out. Paths are taken as they are
written: `~` stands for the home folder, environment variables are not expanded.
"""


class _Generator(GenerateJsonSchema):
    """Writes default values as users write them."""

    def encode_default(self, dft: Any) -> Any:
        """A default in the notation of job files."""
        if isinstance(dft, timedelta):
            return format_duration(dft)
        if isinstance(dft, tuple) and any(isinstance(part, GateRule) for part in dft):
            return [str(part) for part in dft]
        return str(dft) if isinstance(dft, Cadence) else super().encode_default(dft)


def reference_text() -> str:
    """Every field with its type, default and meaning, as Markdown."""
    schema = JobSpec.model_json_schema(schema_generator=_Generator)
    sections = [("The job", schema), *sorted(schema["$defs"].items())]
    parts = [REFERENCE_HEAD]
    for name, section in sections:
        lines = [f"## {name}\n", f"{section['description']}\n", *fields_table(section), ""]
        parts.append("\n".join(lines))
    lacking = {
        task.name: [f"`serve.{name}`" for name in USES if name not in task.serve_fields]
        for task in task_registry.ours()
    }
    refused = "\n".join(f"- {name}: {', '.join(found)}" for name, found in lacking.items() if found)
    parts.append(f"## Not supported yet\n\nRefused, in whole or for some values:\n\n{refused}\n")
    return "\n".join(parts)


def fields_table(section: Mapping[str, Any]) -> list[str]:
    """The fields of one JSON Schema as the lines of a Markdown table."""
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
    """A field's type in words."""
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
    """The schema as JSON text with a final newline."""
    schema = {
        "$schema": SCHEMA_ID,
        **JobSpec.model_json_schema(schema_generator=_Generator),
        "title": "Winnow job",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
