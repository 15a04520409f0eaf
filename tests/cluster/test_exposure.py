"""Ports that others reach and tokens that others read are found; what is closed is not blamed."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import exposure
from cluster.exposure import ROLES, Exposure, Listening

GCS, ENDPOINT = ROLES[0], next(role for role in ROLES if role.name == "endpoint")
LISTENER = """
import socket, sys
taken = socket.create_server((sys.argv[1], 0))
print(taken.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listeners() -> Iterator[dict[str, int]]:
    """Two processes that look like parts of a cluster: one open to the network, one not."""
    started = []
    ports = {}
    for address in ("0.0.0.0", "127.0.0.1"):
        process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, address, "gcs_server"],
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout
        ports[address] = int(process.stdout.readline())
    yield ports
    for process in started:
        process.communicate()


def test_open_ports_are_found_and_blamed(listeners: dict[str, int]) -> None:
    node = exposure.gather()
    found = {(each.address, each.port) for each in node.listening}
    assert set(listeners.items()) <= found
    blamed = [finding for finding in exposure.judge(node) if finding.severity == "error"]
    texts = " ".join(finding.message for finding in blamed)
    assert f"GCS listens on 0.0.0.0:{listeners['0.0.0.0']} and requires no token" in texts
    assert str(listeners["127.0.0.1"]) not in texts


def test_a_cluster_with_tokens_is_told_whom_to_let_in() -> None:
    open_gcs = Listening(GCS, "::", 6379, asks_for_tokens=True)
    endpoint = Listening(ENDPOINT, "0.0.0.0", 8000, asks_for_tokens=False)
    closed = tuple(
        Listening(GCS, address, 6380, asks_for_tokens=False)
        for address in ("::1", "127.0.0.1", "::ffff:127.0.0.1")
    )
    findings = list(exposure.judge(Exposure("node", (open_gcs, endpoint, *closed), ())))
    assert [(f.severity, f.message) for f in findings] == [
        ("warning", "GCS listens on :::6379; close it to all clients but: nodes of the cluster"),
        (
            "warning",
            "endpoint listens on 0.0.0.0:8000; close it to all clients but: clients of the"
            " endpoint",
        ),
    ]


def test_tokens_that_others_can_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ray"))
    for name, mode in (("token", 0o600), ("ray", 0o640)):
        (tmp_path / name).write_text("secret", encoding="utf-8")
        (tmp_path / name).chmod(mode)
    node = exposure.gather()
    assert node.loose_files == (f"{tmp_path}/ray (mode 640)",)
    assert any("chmod 600" in finding.message for finding in exposure.judge(node))


def test_holes_of_packages_are_told_or_that_nobody_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = exposure.advisories()
    assert "advisories were not checked: pip-audit is not installed" in finding.message
    answer = (
        '{"dependencies": [{"name": "fine", "version": "1", "vulns": []}, {"name": "bad", '
        '"version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}]}'
    )
    unseen = (
        '{"dependencies": [{"name": "torch", "skip_reason": "not on PyPI"}, '
        '{"name": "raywinnow", "skip_reason": "editable"}]}'
    )
    for text, told in (
        (answer, "bad 2 has CVE-1; fixed in 3"),
        (unseen, "1 of 2 packages are in no advisory database: torch"),
        ("", "could not reach"),
    ):
        (tmp_path / "pip_audit.py").write_text(f"print({text!r})", encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv(
            "PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        )
        (finding,) = exposure.advisories()
        assert told in finding.message


def test_processes_that_listen_for_others_are_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port not in {each.port for each in exposure.gather().listening}
