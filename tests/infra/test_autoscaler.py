"""A job brings its nodes with it, and they go when it has ended: on Ray's own pretended cloud."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import labels
from infra import partition
from tests import alone
from tests.alone import needs_namespaces

HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
"""As Ray's pretended cloud has them."""
EMPTY: dict[str, Any] = {
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "cluster_synced_files": [],
    "rsync_exclude": [],
    "rsync_filter": [],
    "file_mounts_sync_continuously": False,
}
"""What Ray's schema wants and its pretended cloud does not use."""
LEAVING = """
import json, time, ray
ray.init("auto", log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    workers = [node for node in ray.nodes() if node["NodeID"] != "HEAD"]
    if workers and not any(node["Alive"] for node in workers):
        break
    time.sleep(1)
print(json.dumps([[node["Labels"].get("SKU"), node["Alive"]] for node in workers]))
"""
"""Prints SKU of every node that ever was, and whether it is still there."""
GO = """
ray start --head --autoscaling-config="$1" --num-cpus=2 --node-ip-address=127.0.0.1 \
  --include-dashboard=false >&2
python -m orchestrator train "$2" --address 127.0.0.1:6379 > /dev/null
python -c "$3"
"""
KILLED = """
ray start --head --autoscaling-config="$1" --num-cpus=2 --node-ip-address=127.0.0.1 \
  --include-dashboard=false >&2
python -m orchestrator train "$2" --address 127.0.0.1:6379 > /dev/null 2> driver.log &
until grep -q "plan ✓" driver.log; do sleep 0.2; kill -0 $! || exit 1; done
kill -KILL $!
python -c "$3"
"""


def worker(sku: str) -> dict[str, Any]:
    """A type of node that Ray may start, with pretended accelerators."""
    return {
        "resources": {"CPU": 2, "GPU": 2},
        "labels": {labels.SKU: sku, labels.SIMULATED: "true"},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 2,
    }


@pytest.fixture
def short_folder() -> Iterator[str]:
    """For sockets, whose paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        yield folder


@pytest.fixture
def go(
    reviews: Path, tiny_model: str, tmp_path: Path, short_folder: str
) -> Callable[[str], "subprocess.CompletedProcess[str]"]:
    """Runs a script beside Ray's autoscaler, with a job that needs nodes; all in namespaces."""
    cloud = {
        **EMPTY,
        "cluster_name": "pretended",
        "max_workers": 4,
        "idle_timeout_minutes": 0.05,
        "upscaling_speed": 1.0,
        "head_node_type": HEAD_TYPE,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
        },
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "l40s": worker("L40S"),
            "t4": worker("T4"),
        },
    }
    (tmp_path / "cloud.json").write_text(json.dumps(cloud), encoding="utf-8")
    job = {
        "version": 1,
        "name": "grown",
        "model": {"base": tiny_model},
        "data": {
            "train": {"path": str(reviews / "train.csv")},
            "eval": {"path": str(reviews / "eval.csv")},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1, "global_batch_size": 16, "precision": "fp32"},
        "resources": {"any_of": [{"accelerators": "L40S:2"}], "autoscale": "60s"},
        "storage": str(tmp_path / "storage"),
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    leaving = LEAVING.replace("HEAD", HEAD_ID).replace("SKU", labels.SKU)
    environment = {
        **partition.owner(tmp_path),
        "RAY_TMPDIR": short_folder,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    files = (str(tmp_path / "cloud.json"), str(tmp_path / "job.yaml"))
    return lambda script: alone.run(
        script, *files, leaving, folder=tmp_path, environment=environment
    )


@pytest.mark.e2e
@needs_namespaces
def test_nodes_come_for_a_job_and_go_after_it(
    go: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    """Earns its minute: Ray's autoscaler itself."""
    done = go(GO)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Ray's autoscaler was asked for L40S:2" in done.stderr
    assert "publish ✓" in done.stderr
    assert json.loads(done.stdout) == [["L40S", False]]


@pytest.mark.e2e
@needs_namespaces
def test_nodes_go_when_the_job_that_asked_for_them_is_killed(
    go: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    """Earns its minute: a request that outlives its job keeps nodes that cost money."""
    done = go(KILLED)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads(done.stdout) == [["L40S", False]]
