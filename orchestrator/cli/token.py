"""`winnow token`: the bearer tokens of an endpoint, kept as hashes in a file."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import out
from serve.http import auth

File = Annotated[Path, typer.Option(help="The file that serve.auth.tokens_file names.")]
Name = Annotated[str, typer.Argument(help="Whose token it is, as metrics show it.")]

app = typer.Typer(
    help="Make and revoke an endpoint's bearer tokens; it follows its file without a restart.",
    no_args_is_help=True,
)


@app.command()
def add(name: Name, file: File) -> None:
    """Make a token and print it, this once; the file gets its hash."""
    out().print(auth.add_token(file, name), markup=False)


@app.command()
def revoke(name: Name, file: File) -> None:
    """Take a token out of the file."""
    auth.revoke_token(file, name)
    out().print(f"{name} is refused from now on")


@app.command("list")
def list_tokens(file: File) -> None:
    """Show whose tokens are accepted."""
    for key, name in auth.read_tokens(file).items():
        out().print(f"{name}  {key[:8]}", markup=False)
