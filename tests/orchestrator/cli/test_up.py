"""Commands beside a cluster that is up, and two that start one at the same moment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cluster import local
from cluster.session import Connection
from orchestrator.ui import standing
from tests.builders import MINIMAL, eventually
from tests.commands import call, own_process

pytestmark = pytest.mark.ray


def test_up_takes_a_cluster_with_the_same_nodes_and_refuses_another(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    home = {"WINNOW_HOME": os.environ["WINNOW_HOME"]}
    same = call(tmp_path, "up", "--simulate", "t4=4,L40S=2,a100-80gb=1", "--json", environment=home)
    assert same.returncode == 0, same.stderr
    assert json.loads(same.stdout)["started"] is False
    other = call(tmp_path, "up", "--simulate", "t4=1", environment=home)
    assert other.returncode == 1
    words = "with the simulated nodes A100-80GB:1, L40S:2, T4:4 is up, not one with the simulated"
    assert f"{words} nodes T4:1; stop it with `winnow down`" in " ".join(other.stderr.split())


def test_up_starts_the_dashboard_beside_the_cluster_that_is_up(
    ray_cluster: Connection, tmp_path: Path
) -> None:
    """Whatever its nodes; it sees them."""
    home = {"WINNOW_HOME": os.environ["WINNOW_HOME"]}
    done = call(tmp_path, "up", "--ui", "--json", environment=home)
    assert done.returncode == 0, done.stdout
    said = json.loads(done.stdout)
    assert said["started"] is False
    url, _, token = said["ui"].partition("/#token=")
    headers = {"Authorization": f"Bearer {token}"}
    names = set[str]()

    def has_nodes() -> bool:
        asked = f"{url}/api/cluster"
        view = httpx.get(asked, headers=headers, trust_env=False, timeout=60).json()
        names.update(node["devices"] for node in (view["found"] or {"nodes": []})["nodes"])
        return bool(names)

    try:
        assert eventually(has_nodes, within_s=240)
        assert {"1 x A100-80GB", "2 x L40S", "4 x T4"} < names
        again = json.loads(call(tmp_path, "up", "--ui", "--json", environment=home).stdout)
        assert again["ui"] == said["ui"]
    finally:
        assert standing.stop()


def test_a_local_cluster_is_known_by_its_addresses(ray_cluster: Connection, tmp_path: Path) -> None:
    cluster = local.running()
    assert cluster is not None
    port = cluster.dashboard_port
    for address in (cluster.address, cluster.dashboard_url, f"http://localhost:{port}/"):
        assert local.at(address) == cluster
    for address in (f"http://elsewhere:{port}", "127.0.0.1:9", "auto", ""):
        assert local.at(address) is None


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_a_token_that_is_not_the_cluster_s_is_a_sentence(
    command: str, ray_cluster: Connection, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL, encoding="utf-8")
    for name in ("train.csv", "eval.csv"):
        (tmp_path / name).write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    cluster = local.running()
    assert cluster is not None
    address = {"plan": cluster.address, "submit": cluster.dashboard_url}[command]
    stranger = {
        **own_process(tmp_path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "not" * 16,
    }
    words = [sys.executable, "-m", "orchestrator", command, "job.yaml", "--address", address]
    done = subprocess.run(
        words, cwd=tmp_path, env=stranger, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 1
    assert "RAY_AUTH_TOKEN to the token" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_two_that_start_a_cluster_at_once_get_the_same_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "up", "--json"]
    environment = {**own_process(tmp_path), "WINNOW_HOME": str(tmp_path)}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        found = [json.loads(each.communicate(timeout=180)[0]) for each in both]
        assert found[0]["pid"] == found[1]["pid"]
        assert sorted(each["started"] for each in found) == [False, True]
    finally:
        call(tmp_path, "down", environment={"WINNOW_HOME": str(tmp_path)})
