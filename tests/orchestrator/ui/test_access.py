"""Who may see the dashboard, and who may change something."""

from pathlib import Path

import pytest

from cluster.access import LOOPBACK
from jobs.errors import DeployError
from orchestrator.ui.access import Refusal, Tokens, is_allowed_host, refusal_of
from serve.http import auth
from serve.http.auth import Authenticator, Owner
from tests.commands import call as winnow

HERE = frozenset(LOOPBACK)
READER, OPERATOR = Owner("eve", "read"), Owner("olga", "operate")
PLACE = {"host": "localhost:8270"}


@pytest.mark.parametrize(
    ("host", "names", "is_allowed"),
    [
        ("127.0.0.1:8270", HERE, True),
        ("LOCALHOST.", HERE, True),
        ("[::1]:8270", HERE, True),
        ("evil.example", HERE, False),  # its name may resolve to this machine
        ("localhost.evil.example", HERE, False),
        ("10.0.0.7:8270", HERE, False),
        ("", HERE, False),
        ("[", HERE, False),
        ("10.0.0.7:8270", HERE | {"dash.team"}, True),
        ("dash.team", HERE | {"dash.team"}, True),
        ("evil.example", HERE | {"dash.team"}, False),
        ("10.0.0.7:8270", HERE | {"0.0.0.0"}, True),
    ],
)
def test_only_the_names_of_this_host_are_answered(
    host: str, names: frozenset[str], *, is_allowed: bool
) -> None:
    assert is_allowed_host(host, names) is is_allowed


@pytest.mark.parametrize(
    ("method", "path", "headers", "owner", "status"),
    [
        ("GET", "/api/runs", {}, OPERATOR, 421),
        ("GET", "/index.html", {"host": "evil.example"}, None, 421),
        ("GET", "/api/runs", PLACE, None, 401),
        ("POST", "/api/runs/a/cancel", PLACE, None, 401),
        ("POST", "/index.html", PLACE, OPERATOR, 405),
        ("GET", "/api/runs", PLACE, READER, None),
        ("POST", "/api/runs/a/cancel", PLACE, READER, 403),
        ("PURGE", "/api/runs/a", PLACE, READER, 403),
        ("POST", "/api/runs/a/cancel", PLACE, OPERATOR, None),
        ("POST", "/api/a", {**PLACE, "origin": "http://localhost:8270"}, OPERATOR, None),
        ("POST", "/api/a", {**PLACE, "origin": "http://localhost:9000"}, OPERATOR, 403),
        ("POST", "/api/a", {**PLACE, "origin": "null"}, OPERATOR, 403),
        ("POST", "/api/a", {**PLACE, "sec-fetch-site": "same-site"}, OPERATOR, 403),
    ],
)
def test_requests_are_refused_for_host_token_origin_and_scope(
    method: str, path: str, headers: dict[str, str], owner: Owner | None, status: int | None
) -> None:
    found = refusal_of(method, path, headers, owner, HERE)
    assert (found.status if isinstance(found, Refusal) else None) == status


def test_scopes_are_kept_and_tokens_of_endpoints_are_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(DeployError, match="cannot be read"):
        Tokens({}, path)
    plain = auth.add_token(path, "app")
    with pytest.raises(DeployError, match="has no token of the dashboard"):
        Tokens({}, path)
    reading = auth.add_token(path, "eve", "read")
    known = Tokens({}, path)
    assert known.owner_of(f"Bearer {reading}") == READER
    assert known.owner_of(f"Bearer {plain}") is None
    assert known.owner_of(reading) is None
    endpoint = Authenticator(file=str(path))
    assert endpoint.owner_of(f"Bearer {plain}") == "app"
    assert endpoint.owner_of(f"Bearer {reading}") is None
    operating = auth.add_token(path, "olga", "operate")
    assert known.owner_of(f"Bearer {operating}") == OPERATOR
    auth.revoke_token(path, "eve")
    assert known.owner_of(f"Bearer {reading}") is None
    path.unlink()
    assert known.owner_of(f"Bearer {operating}") == OPERATOR


def test_the_command_adds_tokens_with_a_scope(tmp_path: Path) -> None:
    at = ("--file", str(tmp_path / "tokens"))
    token = winnow(tmp_path, "token", "add", "eve", *at, "--scope", "read").stdout.strip()
    listed = winnow(tmp_path, "token", "list", *at).stdout.strip()
    assert listed == f"eve  {auth.digest(token)[:8]}  read"
    assert winnow(tmp_path, "token", "add", "bob", *at, "--scope", "all").returncode == 2


def test_the_network_is_served_with_tokens_only(tmp_path: Path) -> None:
    done = winnow(tmp_path, "ui", "--host", "0.0.0.0")
    assert (done.returncode, "name a file of tokens" in done.stderr) == (1, True)
