"""Write the files of a Ray cluster on AWS: `infra/aws/make_cluster.py --image I --bucket B`.

    ray up cluster.yaml          # then: winnow submit job.yaml --address http://127.0.0.1:8265
    ray dashboard cluster.yaml   # keeps that port open
    ray attach cluster.yaml --port-forward 8270   # with --ui-tokens: the dashboard of winnow ui

Writes to `--out`: `cluster.yaml` for `ray up`, with one worker type for each SKU of the catalogue
that AWS rents, on demand and spot; and the IAM policies of the head and the workers. A job with
`resources.autoscale` starts the nodes that it needs; for other jobs `--up 1` keeps one on-demand
node of each SKU. The cluster requires the token in ~/.ray/auth_token of this machine (`ray
get-auth-token --generate` makes one), and Ray copies that file to every node. Ray reads the CPU and
GPU counts of an instance type from AWS. Ports are open only inside the cluster's security group.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster import catalogue, labels

HEAD = "m5.xlarge"
TOKEN = "~/.ray/auth_token"
MOST_OF_A_TYPE, IDLE_MINUTES = 4, 10
DISK_GIB = 200
ENDED = ("V100-16GB",)
"""SKUs whose instance type AWS no longer lists (p3.2xlarge, by moto 5.2's copy of the list). Ray
refuses a cluster file with a type that the region lacks; `--skus` names the SKUs of your region."""
UI_TOKENS = "~/dashboard.tokens"
UI = (
    "(flock -n /tmp/winnow-ui.lock sh -c 'while true; do RAY_AUTH_MODE=token winnow ui"
    f" --storage s3://{{bucket}}/winnow --address 127.0.0.1:6379 --tokens {UI_TOKENS}; sleep 10;"
    " done' > ~/winnow-ui.log 2>&1 &)"
)
"""Shell command that keeps one dashboard running on the head at 127.0.0.1:8270."""
START = "ray stop --grace-period 5; RAY_AUTH_MODE=token ray start"


def skus() -> list[str]:
    """Returns the names of the SKUs that AWS rents."""
    known = catalogue.catalogue().values()
    return [sku.name for sku in known if sku.aws and sku.name not in ENDED]


def cluster(
    image: str,
    region: str,
    wanted: Sequence[str],
    *,
    up: int = 0,
    name: str = "winnow",
    ui: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the content of `cluster.yaml`.

    It has workers of the `wanted` SKUs and keeps `up` on-demand nodes of each. With `ui`, the
    bucket and a file of tokens on this machine, the head serves the dashboard. Raises SystemExit
    if AWS does not rent a SKU.
    """
    bucket, tokens = ui or ("", "")
    return {
        "cluster_name": name,
        "max_workers": 64,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {"type": "aws", "region": region, "cache_stopped_nodes": False},
        "auth": {"ssh_user": "ubuntu"},
        "docker": {
            "image": image,
            "container_name": "winnow",
            "pull_before_run": True,
            # NCCL and the object store share memory; the image's own entry point is `winnow`
            "run_options": ["--shm-size=16g", "--ulimit nofile=65536:65536", "--entrypoint=env"],
        },
        "file_mounts": {TOKEN: TOKEN, **({UI_TOKENS: tokens} if ui else {})},
        "head_node_type": "head",
        "available_node_types": {"head": _head(name), **_workers(wanted, up, name)},
        "head_start_ray_commands": [
            f"{START} --head --port=6379 --dashboard-host=127.0.0.1 --metrics-export-port=8080"
            " --autoscaling-config=~/ray_bootstrap_config.yaml",
            *([UI.format(bucket=bucket)] if ui else []),
        ],
        "worker_start_ray_commands": [
            f"{START} --address=$RAY_HEAD_IP:6379 --metrics-export-port=8080"
        ],
    }


def policies(bucket: str, name: str = "winnow") -> dict[str, dict[str, Any]]:
    """Returns IAM policies by role.

    The head may start nodes and end its own; workers may use only the bucket.
    """
    own = {"StringEquals": {"aws:ResourceTag/ray-cluster-name": name}}
    tagged = {"StringEquals": {"aws:RequestTag/ray-cluster-name": name}}
    files = [
        _allow(["s3:ListBucket", "s3:ListBucketMultipartUploads"], f"arn:aws:s3:::{bucket}"),
        _allow(
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            f"arn:aws:s3:::{bucket}/winnow/*",
        ),
    ]
    instances = "arn:aws:ec2:*:*:instance/*"
    kinds = ("image", "key-pair", "network-interface", "security-group", "subnet", "volume")
    parts = [f"arn:aws:ec2:*:*:{kind}/*" for kind in kinds if kind != "image"]
    head = [
        _allow(["ec2:Describe*", "pricing:GetProducts"], "*"),
        _allow(["ec2:RunInstances"], instances, tagged),
        _allow(["ec2:RunInstances"], [*parts, "arn:aws:ec2:*::image/*"]),
        _allow(
            ["ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances"], instances, own
        ),
        _allow(["ec2:CreateTags"], instances),
        _allow(["iam:PassRole"], f"arn:aws:iam::*:role/{name}-worker"),
    ]
    return {"head": _policy([*head, *files]), "worker": _policy(files)}


def _head(name: str) -> dict[str, Any]:
    # without CPUs Ray places no work on the head, so that load cannot take it down
    config = _node_config(HEAD, f"{name}-head")
    return {"node_config": config, "resources": {"CPU": 0}, "max_workers": 0}


def _workers(wanted: Sequence[str], up: int, name: str) -> dict[str, Any]:
    types = {}
    for sku in map(catalogue.find, wanted):
        if sku.aws is None:
            raise SystemExit(f"AWS does not rent {sku.name}; choose among {', '.join(skus())}")
        for market in ("on-demand", "spot"):
            config = _node_config(sku.aws.instance, f"{name}-worker")
            if market == "spot":
                config["InstanceMarketOptions"] = {"MarketType": "spot"}
            types[f"{sku.name.lower()}-{market}"] = {
                "node_config": config,
                "resources": {},  # Ray reads them from AWS
                "min_workers": up if market == "on-demand" else 0,
                "max_workers": MOST_OF_A_TYPE,
                "labels": {labels.SKU: sku.name, labels.MARKET: market},
            }
    return types


def _node_config(instance: str, role: str) -> dict[str, Any]:
    disk = {"VolumeSize": DISK_GIB, "VolumeType": "gp3", "Encrypted": True}
    return {
        "InstanceType": instance,
        "IamInstanceProfile": {"Name": role},
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": disk}],
        # code that can only make the node send GET requests cannot read the keys of the role
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
    }


def _allow(
    actions: list[str], resource: str | list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": actions, "Resource": resource}
    return {**statement, **({"Condition": condition} if condition else {})}


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True, help="image built from infra/image/Dockerfile")
    parser.add_argument("--bucket", required=True, help="S3 bucket of runs and models")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--skus", nargs="+", default=skus(), metavar="SKU")
    parser.add_argument("--up", type=int, default=0, help="on-demand nodes kept of each SKU")
    parser.add_argument(
        "--ui-tokens", type=Path, help="file of winnow token add: the head serves the dashboard"
    )
    parser.add_argument("--out", type=Path, default=Path("aws"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokens = arguments.ui_tokens
    ui = (arguments.bucket, str(tokens.resolve())) if tokens else None
    content = cluster(arguments.image, arguments.region, arguments.skus, up=arguments.up, ui=ui)
    (arguments.out / "cluster.yaml").write_text(
        yaml.safe_dump(content, sort_keys=False), encoding="utf-8"
    )
    for role, policy in policies(arguments.bucket).items():
        text = json.dumps(policy, indent=2) + "\n"
        (arguments.out / f"{role}-policy.json").write_text(text, encoding="utf-8")
    print(f"written to {arguments.out}: cluster.yaml, head-policy.json, worker-policy.json")


if __name__ == "__main__":
    main()
