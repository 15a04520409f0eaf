"""`winnow init`: a first job file."""

import importlib.resources
from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import RunError
from orchestrator.cli.options import AsJson, out, print_json


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("job.yaml"),
    as_json: AsJson = False,
) -> None:
    """Write a first job file to change."""
    text = (
        importlib.resources.files("orchestrator").joinpath("templates/job.yaml").read_text("utf-8")
    )
    try:
        with path.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        raise RunError(f"{path} exists already; name another file") from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"written": str(path)})
    else:
        out().print(f"wrote {path}; change it, then: winnow validate {path}")
