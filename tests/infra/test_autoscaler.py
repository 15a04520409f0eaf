"""A job brings its nodes with it, and they go when it has ended: on Ray's own pretended cloud."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import partition
from cluster import labels
from tests import alone
from tests.alone import needs_namespaces

pytestmark = pytest.mark.slow

Go = Callable[[str, int], "subprocess.CompletedProcess[str]"]
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
UNTIL = """
import json, time, ray
from orchestrator.stages.nodes import NAMESPACE
ray.init("auto", log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + 90
while time.monotonic() < deadline:
    workers = [node for node in ray.nodes() if node["NodeID"] != "HEAD"]
    if workers and sum(node["Alive"] for node in workers) == COUNT:
        break
    time.sleep(1)
print(json.dumps({
    "nodes": [[node["Labels"].get("SKU"), node["Alive"]] for node in workers],
    "actors": [a for a in ray.util.list_named_actors(True) if a["namespace"] == NAMESPACE],
}))
"""
"""Waits for so many nodes; prints SKU of each that ever was, if it is there, and our actors."""
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
SERVED = GO.replace("train", "run")


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
def go(reviews: Path, tiny_model: str, tmp_path: Path, short_folder: str) -> Go:
    """A script beside Ray's autoscaler, until so many nodes are there; all in namespaces."""
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
        "serve": {
            "route": "/grown",
            "engine": "torch-fp32",
            "accelerators": "L40S:1",
            "replicas": {"min": 3, "max": 3},
        },
        "storage": str(tmp_path / "storage"),
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
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
    until = UNTIL.replace("HEAD", HEAD_ID).replace("SKU", labels.SKU)

    def act(script: str, nodes: int) -> "subprocess.CompletedProcess[str]":
        words = (str(tmp_path / "cloud.json"), str(tmp_path / "job.yaml"))
        words += (until.replace("COUNT", str(nodes)),)
        return alone.run(script, *words, folder=tmp_path, environment=environment)

    return act


@pytest.mark.e2e
@needs_namespaces
def test_nodes_come_for_a_job_and_go_after_it(go: Go) -> None:
    """Catches what only Ray's own autoscaler shows: that it acts on what a job asks for."""
    done = go(GO, 0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "requested L40S:2 from Ray's autoscaler" in done.stderr
    assert "publish ✓" in done.stderr
    assert json.loads(done.stdout) == {"nodes": [["L40S", False]], "actors": []}


@pytest.mark.e2e
@needs_namespaces
def test_nodes_go_when_the_job_that_asked_for_them_is_killed(go: Go) -> None:
    """Catches a request that outlives its job, and keeps nodes that cost money."""
    done = go(KILLED, 0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads(done.stdout) == {"nodes": [["L40S", False]], "actors": []}


@pytest.mark.e2e
@needs_namespaces
def test_replicas_that_find_no_room_bring_a_node(go: Go) -> None:
    """Catches replicas that never start because one node has room for only two of three."""
    done = go(SERVED, 2)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "deploy ✓" in done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [sku for sku, is_there in nodes if is_there] == ["L40S", "L40S"]
