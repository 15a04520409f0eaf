"""The cluster on AWS: valid for Ray, prepared by it on a pretended AWS, and mistakes found."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import jsonschema
import moto
import pytest

from cluster import catalogue, labels
from infra.aws import make_cluster

REGION = "us-east-1"


@pytest.fixture
def written() -> dict[str, Any]:
    """The cluster file."""
    return make_cluster.cluster("registry.example/winnow:1", REGION, make_cluster.skus(), up=1)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pretended AWS with the roles that the file names."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    with moto.mock_aws():
        iam = boto3.client("iam", region_name=REGION)
        for role, policy in make_cluster.policies("models").items():
            name = f"winnow-{role}"
            trust = json.dumps({"Version": "2012-10-17", "Statement": []})
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
            iam.put_role_policy(
                RoleName=name, PolicyName="winnow", PolicyDocument=json.dumps(policy)
            )
            iam.create_instance_profile(InstanceProfileName=name)
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        yield


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """As Ray fills it in and checks it."""
    from ray.autoscaler._private import util

    filled: dict[str, Any] = util.prepare_config(copy.deepcopy(config))
    util.validate_config(filled)
    return filled


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


@pytest.mark.usefixtures("aws")
def test_ray_takes_the_file_and_prepares_it(
    written: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    filled = AWSNodeProvider.fillout_available_node_types_resources(prepared(written))
    ready = bootstrap_aws(filled)
    types = ready["available_node_types"]
    assert types["t4-spot"]["resources"]["GPU"] == 1
    assert types["a100-40gb-on-demand"]["resources"]["GPU"] == 8
    assert types["head"]["resources"]["CPU"] == 0
    for each in types.values():
        assert each["node_config"]["ImageId"].startswith("ami-")
        assert each["node_config"]["SubnetIds"]
        assert each["node_config"]["SecurityGroupIds"]
    group = boto3.resource("ec2", region_name=REGION).SecurityGroup(
        types["head"]["node_config"]["SecurityGroupIds"][0]
    )
    open_to_all = [
        rule["FromPort"]
        for rule in group.ip_permissions
        if any(found["CidrIp"] == "0.0.0.0/0" for found in rule["IpRanges"])
    ]
    assert open_to_all == [22]


@pytest.mark.parametrize(
    "plant",
    [
        {"head_node_type": "missing"},
        {"available_node_types": {"head": {"resources": {}}}},
        {"dockr": {}},
        {"idle_timeout_minutes": "soon"},
    ],
)
def test_planted_mistakes_are_found(plant: dict[str, Any], written: dict[str, Any]) -> None:
    with pytest.raises((jsonschema.ValidationError, ValueError, KeyError)):
        prepared({**written, **plant})


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
