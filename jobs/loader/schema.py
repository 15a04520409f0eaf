"""The JSON Schema of a job file for editors, and Markdown tables of a schema's fields."""

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest, Cadence, format_duration
from jobs.spec.serve import GateRule

EXTENDS = {
    "type": "string",
    "title": "Extends",
    "description": (
        "Job file whose values this one takes over, such as base.yaml; relative to this file, and"
        " it may extend another one. Mappings are merged, and any other value here replaces its"
        " own."
    ),
}
"""Schema of the key that the loader resolves, so that no field of a job has it."""
SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Writes default values in the notation of job files, and what each field means."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Returns the schema of a section, with its fields' docstrings as descriptions."""
        section = super().model_schema(schema)
        for name, meaning in field_meanings(schema["cls"]).items():
            field = section["properties"].get(name)
            if field is not None and meaning != self._meaning_of(field.get("$ref")):
                field.setdefault("description", meaning)
        return section

    def _meaning_of(self, reference: str | None) -> str | None:
        """Returns the description of a section that a field refers to."""
        found = self.get_schema_from_definitions(JsonRef(reference)) if reference else None
        return found.get("description") if found else None

    def encode_default(self, dft: Any) -> Any:
        """Returns a default in the notation of job files."""
        if isinstance(dft, timedelta):
            return format_duration(dft)
        if isinstance(dft, tuple) and any(isinstance(part, GateRule) for part in dft):
            return [str(part) for part in dft]
        if isinstance(dft, Cadence | AcceleratorRequest):
            return str(dft)
        return super().encode_default(dft)


def field_meanings(section: type) -> dict[str, str]:
    """Returns the docstring of each field of a section, inherited ones included.

    Read here and not when a section is defined, because commands that print no schema need none.
    """
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        found |= _meanings_in(kind.__module__).get(kind.__qualname__, {})
    return found


@cache
def _meanings_in(module: str) -> dict[str, dict[str, str]]:
    """Returns the docstrings of fields in a module, by class; none without its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {kind.name: _meanings(kind) for kind in tree.body if isinstance(kind, ast.ClassDef)}


def _meanings(kind: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, text in pairwise(kind.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                found[name] = inspect.cleandoc(meaning)
    return found


def job_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a job file."""
    schema = JobSpec.model_json_schema(schema_generator=_Generator)
    version = {"version": schema["properties"].pop("version"), "extends": EXTENDS}
    return {**schema, "properties": version | schema["properties"]}


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
