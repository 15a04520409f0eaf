"""What a job becomes on Kubernetes, checked against the schemas of those who read it."""

import copy
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from jobs.errors import InfeasibleError
from orchestrator.kubernetes import manifests, objects
from orchestrator.kubernetes.manifests import Options
from orchestrator.kubernetes.pods import Document
from tests.builders import any_of, job

VERSION = "1.34"
"""Of Kubernetes, for its own kinds."""
SCHEMAS = "WINNOW_KUBERAY_SCHEMAS"
IMAGE = "registry.example/winnow@sha256:" + "0" * 64


def whole_job(**fields: Any) -> Any:
    return job(
        data__train={"path": "s3://team/train.csv"},
        data__eval={"path": "s3://team/eval.csv"},
        storage="s3://team/winnow",
        resources__any_of=any_of("T4:1", "A100-80GB:2", "A100-80GB:1", "MI300X:1", "cpu:4"),
        budget={"max_duration": "2h"},
        serve={
            "route": "/reviews",
            "accelerators": "L40S:1",
            "fallback": ["T4:1"],
            "replicas": {"min": 1, "max": 3},
        },
        **fields,
    )


@pytest.fixture(scope="module")
def files() -> dict[str, list[Document]]:
    """Of a job on several kinds of GPU, with an endpoint, by path."""
    options = Options(IMAGE, namespace="ml", queue="gpus")
    return manifests.documents_of(whole_job(), options)


@pytest.fixture(scope="module")
def schema() -> Callable[[str], Document]:
    """KubeRay's strict schema of a kind."""
    folder = os.environ.get(SCHEMAS)
    if not folder:
        pytest.skip(f"set {SCHEMAS} to a folder that infra/kuberay_schemas.py made")
    return lambda kind: json.loads((Path(folder) / f"{kind.lower()}-v1.json").read_text())


def of_ray(files: dict[str, list[Document]]) -> Iterator[Document]:
    found = [d for documents in files.values() for d in documents]
    return (d for d in found if d["apiVersion"] == "ray.io/v1")


def pods_of(node: Any) -> Iterator[Document]:
    """Every pod template inside a document."""
    if isinstance(node, dict):
        yield from (v for k, v in node.items() if k in ("template", "submitterPodTemplate"))
        node = list(node.values())
    for part in node if isinstance(node, list) else ():
        yield from pods_of(part)


def test_kuberay_takes_every_kind(
    files: dict[str, list[Document]], schema: Callable[[str], Document]
) -> None:
    found = list(of_ray(files))
    assert {d["kind"] for d in found} == {"RayJob", "RayCluster", "RayService"}
    for document in found:
        jsonschema.validate(document, schema(document["kind"]))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("RayCluster", ("spec", "workerGroupSpec"), []),
        ("RayCluster", ("spec", "headGroupSpec"), None),
        ("RayCluster", ("spec", "workerGroupSpecs", 0, "replicas"), "one"),
        ("RayCluster", ("spec", "authOptions", "mode"), "maybe"),
        ("RayJob", ("spec", "entrypoints"), "x"),
        ("RayJob", ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "image"), "x"),
        ("RayService", ("spec", "rayClusterConfig", "gcsFaultToleranceOptions", "backend"), "disk"),
    ],
)
def test_kuberay_s_schemas_find_a_planted_mistake(
    kind: str,
    path: tuple[Any, ...],
    value: object,
    files: dict[str, list[Document]],
    schema: Callable[[str], Document],
) -> None:
    document = copy.deepcopy(next(d for d in of_ray(files) if d["kind"] == kind))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(kind))


def test_kubernetes_takes_its_own_kinds_and_every_pod(files: dict[str, list[Document]]) -> None:
    own = [d for name, ds in files.items() if "kustomization" not in name for d in ds]
    own = [d for d in own if d["apiVersion"] != "ray.io/v1"]
    assert {d["kind"] for d in own} == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget"}
    pods = [pod for document in of_ray(files) for pod in pods_of(document)]
    assert len(pods) == 2 * (1 + 4) + 1 + 3
    own += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
    for document in own:
        kubernetes_validate.validate(document, VERSION, strict=True)
    broken = copy.deepcopy(own[-1])
    broken["spec"]["containers"][0]["securityContext"]["runAsNonRoots"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_nobody_in_a_pod_is_root_or_becomes_it(files: dict[str, list[Document]]) -> None:
    for document in of_ray(files):
        for pod in pods_of(document):
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
            for container in pod["spec"]["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["image"] == IMAGE
        cluster = document["spec"].get("rayClusterSpec") or document["spec"].get("rayClusterConfig")
        assert (cluster or document["spec"])["authOptions"] == {"mode": "token"}


def test_each_sku_has_one_group_as_large_as_its_largest_placement(
    files: dict[str, list[Document]],
) -> None:
    (document,) = files["job/rayjob.yaml"]
    groups = {g["groupName"]: g for g in document["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    assert set(groups) == {"t4", "a100-80gb", "mi300x", "cpu"}

    def limits(name: str) -> Document:
        found: Document = groups[name]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return found

    assert limits("a100-80gb") == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"}
    assert limits("mi300x")["amd.com/gpu"] == "1"
    assert limits("cpu") == {"cpu": "4", "memory": "64Gi"}
    affinity = groups["a100-80gb"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (rule,) = term["matchExpressions"]
    assert rule["key"] == "nvidia.com/gpu.product"
    assert "NVIDIA-A100-SXM4-80GB" in rule["values"]
    assert "affinity" not in groups["cpu"]["template"]["spec"]
    assert groups["t4"]["labels"] == {"winnow.io/sku": "T4"}
    assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert document["spec"]["activeDeadlineSeconds"] == 3 * 7200 + 600


def test_the_job_in_the_config_map_runs_without_an_endpoint(
    files: dict[str, list[Document]],
) -> None:
    (config,) = files["job/job.yaml"]
    inside = yaml.safe_load(config["data"]["job.yaml"])
    assert "serve" not in inside
    assert inside["storage"] == "s3://team/winnow"
    (document,) = files["job/rayjob.yaml"]
    volumes = document["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    assert {"name": "job", "configMap": {"name": config["metadata"]["name"]}} in volumes


def test_kustomize_builds_every_folder(files: dict[str, list[Document]], tmp_path: Path) -> None:
    for name, documents in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(objects.to_text(*documents), encoding="utf-8")
    kubectl = Path(sys.executable).with_name("kubectl")
    for folder, count in (("job", 3), ("cluster", 2), ("endpoint", 3)):
        done = subprocess.run(
            [kubectl, "kustomize", tmp_path / folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        built = list(yaml.safe_load_all(done.stdout))
        assert len(built) == count
        assert {d["metadata"]["namespace"] for d in built} == {"ml"}
        plain = [d for n, ds in files.items() if n.startswith(folder) for d in ds]
        for document in built:
            own = next(d for d in plain if d["kind"] == document["kind"])
            assert document.get("spec") == own.get("spec")


def test_nodes_for_fallbacks_come_when_replicas_need_them(files: dict[str, list[Document]]) -> None:
    (service,) = (d for d in of_ray(files) if d["kind"] == "RayService")
    groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    counts = [(g["groupName"], g["minReplicas"], g["replicas"], g["maxReplicas"]) for g in groups]
    assert counts == [("l40s", 1, 1, 3), ("t4", 0, 0, 3)]


def test_grpc_is_refused() -> None:
    places = {"data__train": {"path": "s3://team/x.csv"}, "data__eval": {"path": "s3://team/y.csv"}}
    spec = job(storage="s3://team/x", serve={"route": "/x", "grpc": True}, **places)
    with pytest.raises(InfeasibleError, match="KubeRay opens no gRPC port"):
        manifests.documents_of(spec, Options(IMAGE))


def test_a_job_without_resources_is_refused_because_its_cluster_would_have_no_workers() -> None:
    spec = whole_job()
    with pytest.raises(InfeasibleError, match=r"resources is missing.*add resources\.any_of"):
        manifests.documents_of(spec.model_copy(update={"resources": None}), Options(IMAGE))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("storage", "./.winnow"),
        ("data__train", {"path": "train.csv"}),
        ("model__base", "./models/mine"),
    ],
)
def test_what_pods_do_not_see_is_refused(field: str, value: object) -> None:
    plain = {"storage": "s3://team/x", "data__train": {"path": "s3://team/x.csv"}}
    spec = job(data__eval={"path": "s3://team/y.csv"}, **{**plain, field: value})
    with pytest.raises(InfeasibleError, match="path of this machine"):
        manifests.documents_of(spec, Options(IMAGE))


def test_a_volume_holds_what_is_not_in_s3() -> None:
    spec = job(
        storage="/mnt/winnow/runs",
        data__train={"path": "/mnt/winnow/train.csv"},
        data__eval={"path": "/mnt/winnow/eval.csv"},
        resources__any_of=any_of("T4:1"),
    )
    with pytest.raises(InfeasibleError, match="--claim"):
        manifests.documents_of(spec, Options(IMAGE))
    found = manifests.documents_of(spec, Options(IMAGE, claim="shared"))
    assert "endpoint/rayservice.yaml" not in found
    for document in of_ray(found):
        for pod in pods_of(document):
            if pod["spec"].get("volumes"):
                claims = [v.get("persistentVolumeClaim") for v in pod["spec"]["volumes"]]
                assert {"claimName": "shared"} in claims


def test_no_pod_of_ray_starts_without_the_secrets_that_the_job_names() -> None:
    found = manifests.documents_of(whole_job(secrets=["HF_TOKEN"]), Options(IMAGE))
    wanted = {"secretKeyRef": {"name": "winnow-secrets", "key": "HF_TOKEN"}}
    own = [pod["spec"]["containers"][0] for d in of_ray(found) for pod in pods_of(d)]
    rays = [each for each in own if each["name"] in ("ray-head", "ray-worker")]
    assert len(rays) > 6
    for container in rays:
        values = {each["name"]: each for each in container["env"]}
        assert values["HF_TOKEN"]["valueFrom"] == wanted


@pytest.mark.parametrize(("priority", "name"), [(50, "winnow-50"), (-3, "winnow-minus-3")])
def test_kueue_knows_the_priority_by_a_class_that_is_written_too(priority: int, name: str) -> None:
    found = manifests.documents_of(
        whole_job(priority=priority), Options(IMAGE, namespace="ml", queue="gpus")
    )
    (document,) = found["job/rayjob.yaml"]
    assert document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == name
    (made,) = found["priority/priority.yaml"]
    assert (made["kind"], made["apiVersion"]) == (
        "WorkloadPriorityClass",
        "kueue.x-k8s.io/v1beta1",
    )
    assert (made["metadata"]["name"], made["value"]) == (name, priority)
    (folder,) = found["priority/kustomization.yaml"]
    assert "namespace" not in folder  # a class is of the whole cluster
    assert folder["resources"] == ["priority.yaml"]


def test_a_job_without_a_queue_or_a_priority_names_no_class(
    files: dict[str, list[Document]],
) -> None:
    unqueued = manifests.documents_of(whole_job(priority=50), Options(IMAGE))
    for found in (files, unqueued):
        (document,) = found["job/rayjob.yaml"]
        assert "kueue.x-k8s.io/priority-class" not in document["metadata"]["labels"]
        assert not any(path.startswith("priority/") for path in found)


def test_the_head_of_a_cluster_that_stays_serves_the_dashboard_behind_tokens() -> None:
    options = Options(IMAGE, namespace="ml", has_ui=True)
    found = manifests.documents_of(whole_job(), options)
    (document,) = found["cluster/raycluster.yaml"]
    pod = document["spec"]["headGroupSpec"]["template"]
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, VERSION, strict=True)
    container = pod["spec"]["containers"][0]
    script = container["lifecycle"]["postStart"]["exec"]["command"][-1]
    words = shlex.split(script.partition("do ")[2].partition(";")[0])
    assert words[:6] == ["python", "-m", "raywinnow", "ui", "--host", "0.0.0.0"]
    options_of = dict(itertools.pairwise(words[4:]))
    assert options_of["--storage"] == "s3://team/winnow"
    assert options_of["--name"] == "reviews-cluster-head-svc.ml"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert options_of["--tokens"] == f"{mounts['ui']}/tokens"
    assert {"name": "winnow-ui", "containerPort": 8270} in container["ports"]
    (policy,) = found["cluster/network.yaml"]
    admitted = [rule["ports"] for rule in policy["spec"]["ingress"] if "ports" in rule]
    assert [{"protocol": "TCP", "port": 8270}] in admitted
    for path in ("job/rayjob.yaml", "endpoint/rayservice.yaml"):
        assert "winnow-ui" not in objects.to_text(*found[path])


def test_a_redis_takes_the_place_of_rocksdb() -> None:
    found = manifests.documents_of(whole_job(), Options(IMAGE, redis="redis:6379"))
    (document,) = found["cluster/raycluster.yaml"]
    assert document["spec"]["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"
