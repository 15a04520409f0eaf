"""The `winnow` command in this process, without the seconds that a new interpreter takes."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from jobs import errors
from orchestrator import cli
from orchestrator.cli.schema import printed_by


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def call(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command in a folder as if it were the first on this machine, with no cluster up.

    `environment` holds further variables; an empty value takes one away.
    """
    out, err = io.StringIO(), io.StringIO()
    changed = {"WINNOW_HOME": str(folder / "home"), "RAY_ADDRESS": "", **(environment or {})}
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        for name, value in changed.items():
            if value:
                patch.setenv(name, value)
            else:
                patch.delenv(name, raising=False)
        patch.setattr(sys, "argv", ["winnow", *arguments])
        patch.setattr(errors, "_named", set())  # secrets that other tests have named
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
                code: object = 0
            except SystemExit as ended:
                code = ended.code
    return Done(
        code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue()
    )


def own_process(folder: Path) -> dict[str, str]:
    """The environment of a command in a process of its own, with the same state as `call`."""
    root = Path(__file__).parents[1]
    return {**os.environ, "WINNOW_HOME": str(folder / "home"), "PYTHONPATH": str(root)}


def printed(command: str, text: str) -> Any:
    """What a command printed with --json, which is checked against the schema of that."""
    schema = TypeAdapter(printed_by(command)).json_schema(mode="serialization")
    found = json.loads(text)
    jsonschema.validate(found, schema)
    return found
