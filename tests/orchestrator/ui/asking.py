"""A client of the dashboard with a token, without a socket."""

from pathlib import Path

from fastapi.testclient import TestClient

from jobs.storage.storage import Storage
from orchestrator.ui.access import Tokens
from orchestrator.ui.app import create_application
from orchestrator.ui.operations import Place
from serve.http import auth
from serve.http.auth import Owner

URL = "http://127.0.0.1:8270"
OWNERS = {"read": Owner("eve", "read"), "operate": Owner("olga", "operate")}


def client(storage: Storage, folder: Path, scope: str = "read") -> TestClient:
    """A client with a token of a scope, named as the scope."""
    tokens = Tokens({auth.digest(name): owner for name, owner in OWNERS.items()})
    names = frozenset({"127.0.0.1"})
    application = create_application(storage, Place(storage.url, folder), tokens, names)
    return TestClient(application, URL, headers={"Authorization": f"Bearer {scope}"})
