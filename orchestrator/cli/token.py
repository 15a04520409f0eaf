"""`winnow token`: adds, revokes and lists the bearer tokens of an endpoint, stored as hashes."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import out
from serve.http import auth

File = Annotated[Path, typer.Option(help="The file that serve.auth.tokens_file names.")]
Name = Annotated[str, typer.Argument(help="Owner of the token, as in metrics.")]

app = typer.Typer(
    help="Add and revoke an endpoint's bearer tokens; they take effect without a restart.",
    no_args_is_help=True,
)


@app.command()
def add(name: Name, file: File) -> None:
    """Create a token and print it once; the file stores its hash."""
    out().print(auth.add_token(file, name), markup=False)


@app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a token from the file."""
    auth.revoke_token(file, name)
    out().print(f"the endpoint refuses the token of {name} from now on")


@app.command("list")
def list_tokens(file: File) -> None:
    """List the owners of the accepted tokens."""
    for key, name in auth.read_tokens(file).items():
        out().print(f"{name}  {key[:8]}", markup=False)
