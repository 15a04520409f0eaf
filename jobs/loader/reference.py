"""The reference page of the job file: every field by its YAML path, an example for each section."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.loader.reference_examples import EXAMPLES
from jobs.loader.schema import job_schema
from jobs.loader.source import parse
from jobs.spec import task_registry
from jobs.spec.data import DataSpec
from jobs.spec.task import VARIANT_MARK, Task
from jobs.spec.unsupported import USES

HEAD = """# The job file

Every field by its path, in the order of the file. `winnow schema --markdown` prints this page, and
`make schema` writes it; [`job.schema.json`](../job.schema.json) says the same to editors. A job
needs `version`, `name`, `model` and `data`; every other section may be left out. A path to a file
is relative to the job file, and `~` stands for the home folder. `${NAME}` and `${NAME:-default}`
stand for variables, and `extends` for another file: [shared job files](../how-to/job-files.md).
`--set PATH=VALUE` changes one field for one command, such as `--set train.optimizer.lr=5e-5`.
"""
BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
"""Words for the keywords of JSON Schema that limit a number."""

DATA = "data"
"""Path of the section whose fields differ from task to task."""
Schema = Mapping[str, Any]


@dataclass(slots=True)
class Section:
    """A mapping of the job file, with every path at which it may be written."""

    paths: list[str]
    schemas: list[Schema] = field(default_factory=list)
    """One for each form of the mapping."""

    @property
    def title(self) -> str:
        """The heading as plain text."""
        return ", ".join(self.paths)

    @property
    def anchor(self) -> str:
        """The heading's anchor, as mkdocs and GitHub generate it."""
        return re.sub(r"[^\w -]", "", self.title).lower().replace(" ", "-")


def reference_text() -> str:
    """Returns the page as Markdown."""
    schema = job_schema()
    found = sections(schema)
    parts = [HEAD, "\n".join(["## The file\n", *_section("", [schema], found)])]
    for section in in_order(found):
        first = section.paths[0]
        heading = ", ".join(f"`{path}`" for path in section.paths)
        level = "###" if "." in first else "##"
        text = _data(found) if first == DATA else _section(first, section.schemas, found)
        parts.append("\n".join([f"{level} {heading}\n", *text]))
    lacking = {
        task.name: [f"`serve.{name}`" for name in USES if name not in task.serve_fields]
        for task in task_registry.ours()
    }
    refused = "\n".join(f"- {name}: {', '.join(names)}" for name, names in lacking.items() if names)
    parts.append(
        "## Not supported yet\n\nThese are in the format, and `winnow validate` refuses values"
        f" other than the default for these tasks:\n\n{refused}\n"
    )
    return "\n".join(parts)


def sections(schema: Schema) -> dict[str, Section]:
    """Returns the sections of a schema by the names of their definitions, in the file's order."""
    found: dict[str, Section] = {}
    _collect(schema, "", schema["$defs"], found)
    return found


def _collect(
    part: Schema, prefix: str, definitions: Mapping[str, Schema], found: dict[str, Section]
) -> None:
    for name, value in part.get("properties", {}).items():
        for path, definition in _references(value, f"{prefix}{name}"):
            if definition in found:
                if path not in found[definition].paths:
                    found[definition].paths.append(path)
                continue
            found[definition] = Section([path], [definitions[definition]])
            _collect(definitions[definition], f"{path}.", definitions, found)


def _references(value: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the definition of each mapping that a field may hold."""
    if "$ref" in value:
        yield path, _name(value)
    for option in value.get("anyOf", ()):
        yield from _references(option, path)
    if isinstance(value.get("items"), Mapping):
        yield from _references(value["items"], f"{path}[]")
    if isinstance(value.get("additionalProperties"), Mapping):
        yield from _references(value["additionalProperties"], f"{path}.NAME")


def _name(reference: Schema) -> str:
    """Returns the name of the definition that a reference stands for."""
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def in_order(found: Mapping[str, Section]) -> list[Section]:
    """Returns sections in the file's order, those with several forms as one."""
    merged: dict[str, Section] = {}
    for section in found.values():
        if section.title in merged:
            merged[section.title].schemas.extend(section.schemas)
        else:
            merged[section.title] = Section(section.paths, list(section.schemas))
    return list(merged.values())


def _data(found: Mapping[str, Section]) -> list[str]:
    """Returns the data section: what all tasks share, then a heading for each task and variant."""
    kinds = task_registry.kinds()
    links = [f"- [{kind.name}](#{_kind_section(kind).anchor})" for kind in kinds]
    shared, names = found[kinds[0].data.__name__].schemas[0], tuple(DataSpec.model_fields)
    lines = [
        "The rows to learn from and the rows to judge by. These fields are of every task:\n",
        *_table(shared, found, names),
        "Each task, and each variant that the data section chooses, has its own columns:\n",
        *links,
        "",
    ]
    for kind in kinds:
        lines += _kind(kind, found)
    return lines


def _kind_section(kind: Task) -> Section:
    return Section([f"data: {kind.name.replace(VARIANT_MARK, ', ')}"])


def _kind(kind: Task, found: Mapping[str, Section]) -> list[str]:
    """Returns the columns of a task or variant, its metrics and its examples."""
    form = found[kind.data.__name__].schemas[0]
    names = [
        name for name in form["properties"] if name not in (*DataSpec.model_fields, *kind.ignores)
    ]
    metrics = ", ".join(f"`{name}`" for name in kind.metric_names)
    defaults = ", ".join(f"`{name}`" for name in kind.default_metrics)
    return [
        f"### {_kind_section(kind).title}\n",
        f"{form['description']}\n",
        *(f"```yaml\n{text}```\n" for text in EXAMPLES[DATA] if kind_of(text) is kind),
        *_table(form, found, names),
        f"Metrics: {metrics}; by default {defaults}.\n",
    ]


def kind_of(example: str) -> Task:
    """Returns the task of an example, in the variant that its data section chooses."""
    values = parse(example, "example").values
    name = values.get("model", {}).get("task", task_registry.DEFAULT_TASK)
    data = task_registry.find(name).data.model_validate(values["data"])
    assert isinstance(data, DataSpec)
    return task_registry.chosen(name, data.variant)


def _section(path: str, forms: Sequence[Schema], found: Mapping[str, Section]) -> list[str]:
    """Returns description, examples and table of a section; each further form has its own table."""
    examples = [f"```yaml\n{text}```\n" for text in EXAMPLES[path]]
    first, *others = forms
    lines = [f"{first['description']}\n", *examples, *_table(first, found)]
    for form in others:
        lines += [f"{form['description']}\n", *_table(form, found)]
    return lines


def _table(
    form: Schema, found: Mapping[str, Section], names: Sequence[str] | None = None
) -> list[str]:
    """Returns the table of a mapping's fields, or of those with these names."""
    needed = form.get("required", ())
    rows = [
        _row(name, value, found, is_needed=name in needed)
        for name, value in form["properties"].items()
        if names is None or name in names
    ]
    return ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]


def _row(name: str, value: Schema, found: Mapping[str, Section], *, is_needed: bool) -> str:
    default = "–"
    if is_needed:
        default = "required"
    elif not isinstance(value.get("default"), dict | None):
        default = f"`{json.dumps(value['default'])}`"
    meaning = value.get("description", "")
    if "$ref" in value and not meaning:  # pydantic omits a description equal to its class's
        meaning = found[_name(value)].schemas[0]["description"]
    return f"| `{name}` | {value_type(value, found)} | {default} | {' '.join(meaning.split())} |"


def value_type(value: Schema, found: Mapping[str, Section]) -> str:
    """Returns a field's type in words, with a link to the section that a mapping has."""
    if "$ref" in value:
        return f"[mapping](#{found[_name(value)].anchor})"
    if "anyOf" in value:
        options = [option for option in value["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(value_type(option, found) for option in options))
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of {value_type(value['items'], found)}"
    if isinstance(value.get("additionalProperties"), Mapping):
        return f"mapping of names to {value_type(value['additionalProperties'], found)}"
    return _scalar(value)


def _scalar(value: Schema) -> str:
    """Returns the type of a number or a text, with its bounds or examples of its notation."""
    limits = [f"{words} {_number(value[key])}" for key, words in BOUNDS.items() if key in value]
    shown = " or ".join(f"`{example}`" for example in value.get("examples", ())[:2])
    kind = str(value.get("type", "any"))
    return ", ".join([kind, *limits, *([f"such as {shown}"] if shown else [])])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
