"""What Ray makes of a cluster file on a pretended AWS.

A process of its own: Ray reads its environment when it is imported, and other tests set it later.
"""

import json
import sys
from typing import Any

import boto3
import moto
from ray.autoscaler._private import util
from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

from infra.aws import make_cluster


def main(config: dict[str, Any]) -> dict[str, Any]:
    """Node types as they are started, and the ports of the head that are open to everybody."""
    region = str(config["provider"]["region"])
    filled = util.prepare_config(config)
    util.validate_config(filled)
    with moto.mock_aws():
        make_roles(region)
        ready = bootstrap_aws(AWSNodeProvider.fillout_available_node_types_resources(filled))
        types = ready["available_node_types"]
        (group,) = types["head"]["node_config"]["SecurityGroupIds"]
        rules = boto3.resource("ec2", region_name=region).SecurityGroup(group).ip_permissions
    everybody = {"CidrIp": "0.0.0.0/0"}
    return {
        "types": types,
        "open": [rule["FromPort"] for rule in rules if everybody in rule["IpRanges"]],
    }


def make_roles(region: str) -> None:
    """Those that the file names, with their policies."""
    iam = boto3.client("iam", region_name=region)
    for role, policy in make_cluster.policies("models").items():
        name = f"winnow-{role}"
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        iam.put_role_policy(RoleName=name, PolicyName="winnow", PolicyDocument=json.dumps(policy))
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


if __name__ == "__main__":
    found = main(json.load(sys.stdin))
    sys.stdout.write("\n" + json.dumps(found))
