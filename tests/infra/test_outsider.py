"""A cluster as a stranger finds it from another network."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "infra/firewall.nft"
METRICS = {6385, 44227}
"""Ports of Ray that give numbers to anyone, and that only a firewall closes."""
may_make_networks = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces take root and iproute2",
)


def test_the_firewall_goes_with_the_ports_that_the_script_pins() -> None:
    flags = dict(re.findall(r"--([a-z-]*port)=(\d+)", RULES.read_text(encoding="utf-8")))
    code = "import json; from benchmarks import outsider; print(json.dumps(outsider.PORTS))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]  # it imports Ray, whose settings are those of other tests
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert {name: int(port) for name, port in flags.items()} == json.loads(done.stdout)


@may_make_networks
@pytest.mark.slow
@pytest.mark.e2e
def test_a_stranger_is_refused_at_every_port(tmp_path: Path) -> None:
    """Catches a port of Ray or ours that answers strangers: a real head, from another network."""
    out = tmp_path / "found.json"
    has_firewall = shutil.which("nft") is not None
    words = [sys.executable, str(ROOT / "benchmarks/outsider.py"), "--out", str(out)]
    words += ["--firewall"] if has_firewall else []
    environment = {**os.environ, "WINNOW_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    let_in = {(each["client"], each["token"]) for each in found["clients"] if each["code"] == 0}
    assert let_in == {(client, "right") for client in ("GCS", "job", "ray://")}
    answering = {p["port"] for p in found["ports"] if p["verdict"].startswith("answers")}
    assert answering <= METRICS
    refusing = {p["port"] for p in found["ports"] if p["verdict"].startswith("refuses")}
    assert {6379, 6380, 6381, 6382, 6383, 6384, 6386, 8265} <= refusing
    if has_firewall:
        behind = {each["verdict"] for each in found["behind_firewall"]}
        assert all(verdict.startswith("no connection") for verdict in behind)
