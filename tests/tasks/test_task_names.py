"""Only the folders of tasks know a task by its name; everything else asks the task."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.spec import task_registry

ROOT = Path(__file__).parents[2]
PACKAGES = ("jobs", "cluster", "serve", "orchestrator", "raywinnow")
MAY = ("jobs/tasks/", "serve/tasks/")
REGISTRY = "jobs/spec/task_registry.py"
"""Lists where our tasks are, and compares none."""


def named_in(text: str) -> Iterator[str]:
    """Names of tasks that code compares, lists or imports, with their lines."""
    names = task_registry.OURS.keys()
    modules = {name.replace("-", "_") for name in names}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in names:
            yield f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.Name | ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if word in modules:
                yield f"{node.lineno}: {word}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            of = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            parts = ".".join([*of, *(alias.name for alias in node.names)]).split(".")
            yield from (f"{node.lineno}: {part}" for part in parts if part in modules)


def test_no_code_outside_the_tasks_names_one() -> None:
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert len(files) > 200
    found = [
        f"{place}:{line}"
        for path in files
        if not (place := str(path.relative_to(ROOT))).startswith(MAY) and place != REGISTRY
        for line in named_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        'if task == "causal-lm": pass',
        'KINDS = {"text-classification": 1}',
        "from jobs.tasks.causal_lm import rows",
        "import serve.tasks.text_classification.routes",
        "match task:\n    case 'causal-lm': pass",
    ],
)
def test_planted_names_are_found(planted: str) -> None:
    assert list(named_in(planted))
