"""`winnow up` beside a cluster that is up."""

import json
import os
from pathlib import Path

import pytest

from cluster.session import Connection
from tests.commands import call

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
