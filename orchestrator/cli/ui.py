"""`winnow ui`: shows a storage and a cluster in a browser."""

import secrets
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from cluster.access import LOOPBACK
from jobs.errors import DeployError
from jobs.storage.storage import open_storage
from orchestrator.cli.options import DEFAULT_STORAGE, Address, InsecureLocal, StorageOption, out
from orchestrator.records.owner import owner
from orchestrator.ui import standing


def ui(
    storage: StorageOption = DEFAULT_STORAGE,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = standing.PORT,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File of winnow token add NAME --scope read|operate."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A further name of this host, under which browsers may reach it."),
    ] = None,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    browse: Annotated[
        bool, typer.Option("--open", help="Open the page in this machine's browser.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(hidden=True, help="File for winnow up --ui, with URL and token."),
    ] = None,
) -> None:
    """Show runs, models and endpoints in a browser, until interrupted.

    Without --tokens, the URL that is printed has a token for this process, which may change things.
    """
    if host not in LOOPBACK and tokens is None:
        raise DeployError(
            f"--host {host} opens the dashboard to the network; name a file of tokens with"
            " --tokens, or listen on 127.0.0.1"
        )
    place = open_storage(storage)
    from orchestrator.ui import app, server  # import FastAPI, which takes time
    from orchestrator.ui.operations import Place

    token = None if tokens else secrets.token_urlsafe(32)
    known = server.tokens_of(token, owner(), tokens)
    names = frozenset(each.lower() for each in (*LOOPBACK, host, *(name or ())))

    def tell(url: str) -> None:
        full = f"{url}/#token={token}" if token else f"{url}/"
        out().print(f"the dashboard of {place} answers at {full}", markup=False)
        if record:
            standing.record(record, place.url, url, token, tokens)
        if browse:
            webbrowser.open(full)

    with tempfile.TemporaryDirectory(prefix="winnow-ui-") as folder:
        at = Place(place.url, Path(folder), address, insecure_local)
        server.run(app.create_application(place, at, known, names), host, port, tell)
