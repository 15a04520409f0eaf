"""The dashboard beside the local cluster, which `winnow up --ui` starts and `winnow down` ends."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from jobs.errors import DeployError
from orchestrator.ui import standing
from orchestrator.ui.standing import Standing
from serve.http import auth
from tests.commands import call as winnow

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of Winnow's state, in which no dashboard is left."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(standing, "START_TIMEOUT_S", 300.0)  # it imports everything
    yield tmp_path / "home"
    standing.stop()


def me(found: Standing, token: str | None) -> httpx.Response:
    """What the dashboard says to a token of who asks."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{found.url}/api/me", headers=headers, trust_env=False, timeout=60)


def test_it_answers_its_own_token_until_down(home: Path, tmp_path: Path) -> None:
    storage = str(tmp_path / ".winnow")
    found = standing.start(storage)
    assert found.url.startswith("http://127.0.0.1:")
    assert me(found, None).status_code == 401
    assert (me(found, found.token).json()["scope"], found.link.endswith(str(found.token))) == (
        "operate",
        True,
    )
    assert standing.start(storage) == found
    with pytest.raises(DeployError, match=r"is up at .*`winnow down`"):
        standing.start(str(tmp_path / "other"))
    for name in ("ui.json", "ui.log"):
        assert (home / name).stat().st_mode & 0o077 == 0  # they have the token
    shown = winnow(tmp_path, "status", "--json")
    assert json.loads(shown.stdout)["ui"] == found.url
    said = winnow(tmp_path, "status").stdout
    assert found.url in said
    assert str(found.token) not in said
    down = winnow(tmp_path, "down", "--json")
    assert json.loads(down.stdout) == {"stopped": False, "ui_stopped": True}
    assert not psutil.pid_exists(found.pid)
    assert standing.running() is None
    assert json.loads(winnow(tmp_path, "status", "--json").stdout)["ui"] is None


def test_it_takes_the_tokens_of_a_file_and_a_port_that_is_free(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "dashboard.tokens"
    token = auth.add_token(file, "eve", "read")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", standing.PORT))
        taken.listen()
        found = standing.start(str(tmp_path / ".winnow"), file)
    assert (found.token, found.link) == (None, f"{found.url}/")
    assert not found.url.endswith(f":{standing.PORT}")
    assert me(found, token).json()["scope"] == "read"


def test_why_it_does_not_start_is_said(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.tokens"
    empty.write_text("")
    with pytest.raises(DeployError, match=r"did not start: .* has no token of the dashboard"):
        standing.start(str(tmp_path / ".winnow"), empty)
    assert standing.running() is None
    refused = winnow(tmp_path, "up", "--tokens", str(empty))
    assert (refused.returncode, "add --ui" in refused.stderr) == (1, True)
