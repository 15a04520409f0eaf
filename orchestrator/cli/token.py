"""`winnow token`: adds, revokes and lists bearer tokens, which are stored as hashes."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import out
from serve.http import auth
from serve.http.auth import Scope

File = Annotated[
    Path, typer.Option(help="The file that serve.auth.tokens_file or winnow ui --tokens names.")
]
Name = Annotated[str, typer.Argument(help="Owner of the token, as in metrics.")]

app = typer.Typer(
    help="Add and revoke bearer tokens of an endpoint or of the dashboard, without a restart.",
    no_args_is_help=True,
)


@app.command()
def add(
    name: Name,
    file: File,
    scope: Annotated[
        Scope | None,
        typer.Option(help="For the dashboard: read shows everything, operate changes things too."),
    ] = None,
) -> None:
    """Create a token and print it once; the file stores its hash."""
    out().print(auth.add_token(file, name, scope), markup=False)


@app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a token from the file."""
    auth.revoke_token(file, name)
    out().print(
        f"the endpoint or the dashboard refuses the token of {name} from now on", markup=False
    )


@app.command("list")
def list_tokens(file: File) -> None:
    """List the owners of the accepted tokens, with the scope of those of the dashboard."""
    for key, owner in auth.read_owners(file).items():
        out().print(f"{owner.name}  {key[:8]}  {owner.scope or ''}".rstrip(), markup=False)
