"""`winnow ui` in a process of its own."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.commands import own_process


@pytest.mark.e2e
def test_the_command_prints_a_url_with_a_token_and_ends_on_a_signal(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "raywinnow", "ui", "--port", "0"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=own_process(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", process.stdout.readline())
        assert found
        url, token = found.groups()
        bearer = {"Authorization": f"Bearer {token}"}

        def get(path: str, headers: dict[str, str] | None = None) -> httpx.Response:
            return httpx.get(f"{url}{path}", headers=headers, trust_env=False, timeout=60)

        me = get("/api/me", bearer).json()
        assert (me["scope"], me["storage"]) == ("operate", str(tmp_path / ".winnow"))
        assert get("/api/runs", bearer).json() == []
        assert get("/api/runs").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert not (tmp_path / ".winnow").exists()
