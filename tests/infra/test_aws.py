"""The cluster on AWS: valid for Ray, prepared by it on a pretended AWS, and mistakes found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import catalogue, labels
from infra.aws import make_cluster

REGION = "us-east-1"


@pytest.fixture
def written() -> dict[str, Any]:
    """The cluster file."""
    return make_cluster.cluster("registry.example/winnow:1", REGION, make_cluster.skus(), up=1)


def prepared(config: dict[str, Any], home: Path) -> "subprocess.CompletedProcess[str]":
    """As Ray fills it in, checks it and asks a pretended AWS; it keeps a key in the home folder."""
    (home / ".ssh").mkdir()
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.infra.preparing"],
        input=json.dumps(config),
        env={**kept, **keys, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_sku_of_aws_has_a_type_on_demand_and_one_on_spot(written: dict[str, Any]) -> None:
    types = written["available_node_types"]
    for name in make_cluster.skus():
        sku = catalogue.find(name)
        found = [t for t in types.values() if t.get("labels", {}).get(labels.SKU) == sku.name]
        assert len(found) == 2
        for each in found:
            is_spot = each["labels"][labels.MARKET] == "spot"
            assert ("InstanceMarketOptions" in each["node_config"]) == is_spot
            assert each["node_config"]["InstanceType"] == sku.aws.instance  # type: ignore[union-attr]
            assert each["min_workers"] == (0 if is_spot else 1)
    assert len(types) == 2 * len(make_cluster.skus()) + 1
    assert all("RAY_AUTH_MODE=token" in words for words in written["head_start_ray_commands"])
    assert all("RAY_AUTH_MODE=token" in words for words in written["worker_start_ray_commands"])


def test_the_head_serves_the_dashboard_behind_a_file_of_tokens(tmp_path: Path) -> None:
    tokens = str(tmp_path / "dashboard.tokens")
    Path(tokens).touch()
    made = make_cluster.cluster("i:1", REGION, ["T4"], ui=("team", tokens))
    start, ui = made["head_start_ray_commands"]
    assert "ray start --head" in start
    assert made["file_mounts"][make_cluster.UI_TOKENS] == tokens
    words = "winnow ui --storage s3://team/winnow --address 127.0.0.1:6379"
    assert f"{words} --tokens {make_cluster.UI_TOKENS};" in ui
    assert "--host" not in ui  # reached through a tunnel alone
    said = subprocess.run(["bash", "-n", "-c", ui], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert prepared(made, tmp_path).returncode == 0


def test_ray_takes_the_file_and_prepares_it(written: dict[str, Any], tmp_path: Path) -> None:
    done = prepared(written, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    types = found["types"]
    assert types["t4-spot"]["resources"]["GPU"] == 1
    assert types["a100-40gb-on-demand"]["resources"]["GPU"] == 8
    assert types["head"]["resources"]["CPU"] == 0
    for each in types.values():
        assert each["node_config"]["ImageId"].startswith("ami-")
        assert each["node_config"]["SubnetIds"]
        assert each["node_config"]["SecurityGroupIds"]
    assert found["open"] == [22]


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        ({"head_node_type": "missing"}, "head_node_type"),
        ({"available_node_types": {"head": {"resources": {}}}}, "node_config"),
        ({"dockr": {}}, "dockr"),
        ({"idle_timeout_minutes": "soon"}, "soon"),
    ],
)
def test_planted_mistakes_are_found(
    plant: dict[str, Any], told: str, written: dict[str, Any], tmp_path: Path
) -> None:
    done = prepared({**written, **plant}, tmp_path)
    assert done.returncode != 0
    assert told in done.stderr


def test_workers_reach_the_bucket_and_nothing_else() -> None:
    policies = make_cluster.policies("models")
    for statement in policies["worker"]["Statement"]:
        assert all(action.startswith("s3:") for action in statement["Action"])
        assert statement["Resource"].startswith("arn:aws:s3:::models")
    ending = [s for s in policies["head"]["Statement"] if "ec2:TerminateInstances" in s["Action"]]
    assert [s["Condition"]["StringEquals"] for s in ending] == [
        {"aws:ResourceTag/ray-cluster-name": "winnow"}
    ]
    for policy in policies.values():
        for statement in policy["Statement"]:
            assert "*" not in statement["Action"]
