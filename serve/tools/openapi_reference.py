"""Writes the reference page of endpoints' paths and messages from their OpenAPI documents."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.loader.schema import fields_table, type_name
from jobs.spec import task_registry
from serve.tasks.registry import endpoint_of

HEAD = """# Paths and messages

Generated from the OpenAPI documents by `make schema`; an endpoint shows its own at
`<route>/openapi.json`, and a page to try it at `<route>/docs`. All paths are below the route.
[The endpoint](endpoint.md) has headers, limits and errors in words.
"""


def reference_text() -> str:
    """Returns every path, and every field of every message, as Markdown."""
    tasks = [kind for task in task_registry.ours() for kind in task.kinds]
    endpoints = [endpoint_of(task.name) for task in tasks]
    kinds = {endpoint.title: endpoint.application().openapi() for endpoint in endpoints}
    parts, messages = [HEAD], dict[str, Any]()
    for title, document in kinds.items():
        parts += [f"## {title}\n", *_operations(document)]
        for name, schema in document["components"]["schemas"].items():
            if messages.setdefault(name, schema) != schema:
                raise ValueError(f"two messages of different endpoints are called {name}")
    parts.append("## Messages\n")
    parts += [_message(name, messages[name]) for name in sorted(messages)]
    return "\n".join(parts)


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines = [f"### `{method.upper()} {path}`\n", _words(operation)]
            if "requestBody" in operation:
                lines.append(f"- request: {_content(operation['requestBody'])}")
            answers = operation["responses"]
            lines.append(f"- response: {_content(answers['200'])}")
            errors = ", ".join(sorted(status for status in answers if status != "200"))
            lines += [f"- errors: {errors}"] if errors else []
            yield "\n".join((*lines, ""))


def _content(part: Mapping[str, Any]) -> str:
    """Returns the message of a request or an answer, or its media types if it is not JSON."""
    kinds = part.get("content", {})
    schema = kinds.get("application/json", {}).get("schema")
    return type_name(schema) if schema else ", ".join(f"`{kind}`" for kind in kinds)


def _message(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"### {name}\n", _words(schema), *fields_table(schema), ""]
    for example in schema.get("examples", ()):
        lines += ["```json", json.dumps(example, ensure_ascii=False), "```", ""]
    return "\n".join(lines)


def _words(described: Mapping[str, Any]) -> str:
    words = " ".join(str(described.get("description", "")).split())
    return f"{words}\n" if words else ""
