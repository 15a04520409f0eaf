"""Commands are imported when they are called, and are listed as they describe themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import commands
from tests.commands import own_process

HEAVY = ("ray", "torch", "transformers", "fastapi", "numpy", "pyarrow", "boto3", "aiohttp")
"""Packages that take long to import."""
JOB = """\
version: 1
name: far
model: {base: google-bert/bert-base-uncased}
data:
  train: {path: nyu-mll/glue, name: sst2}
  eval: {path: nyu-mll/glue, name: sst2, split: validation}
  text: sentence
"""


def test_every_command_is_listed_with_the_first_sentence_of_its_help() -> None:
    for name, (place, summary) in commands.COMMANDS.items():
        command = commands.imported(name, place)
        assert command.name == name
        assert command.help is not None
        assert command.help.split("\n\n")[0].replace("\n", " ") == summary


@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "schema", "validate far.yaml", "render far.yaml"]
)
def test_commands_that_start_nothing_import_nothing_heavy(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(JOB)
    code = (
        "import sys; from raywinnow import main\n"
        f"sys.argv = ['winnow', *{arguments.split()!r}]\n"
        "try: main()\nexcept SystemExit as ended: assert not ended.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=own_process(tmp_path),
    )
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr
