"""Builds the Kubernetes manifests of a job file, for KubeRay 1.7 and kustomize.

Folders, each for `kubectl apply -k`: `job` sweeps, trains and publishes on a cluster of its
own (RayJob); `endpoint` serves the newest published version (RayService); `cluster` stays up for
`winnow submit` (RayCluster). A job with a priority in a queue of Kueue has a fourth, `priority`,
with the class that the queue knows the priority by.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from cluster import catalogue, ingress
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.publish import HUB_TOKEN
from jobs.spec.quantities import AcceleratorRequest
from jobs.storage.storage import S3_SCHEME
from orchestrator.kubernetes import objects, pods
from orchestrator.kubernetes.pods import Document, Group, Image
from raywinnow import COMMAND

RAY_VERSION = "2.60.0"
IDLE_S = 600
"""How long a pod may idle before it is removed; a sweep may return to hardware that it has left."""
KEPT_S = 600
"""How long a finished RayJob is kept, so that its log can be read."""
RETRIES = 2
"""New clusters after a failure of the first; each resumes the run."""
SWITCH_S = 60
"""How long the cluster of a replaced endpoint stays up to finish its requests."""
ENTRYPOINT = f"{COMMAND} run {pods.JOB_FOLDER}/job.yaml --resume --or-new"
BUILDER = "orchestrator.endpoint:build"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HOME": "/tmp/huggingface",
    "WINNOW_HOME": "/tmp/winnow",
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAME": "^lo,docker",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that are not in the job file."""

    image: str
    """Container image with Ray and Winnow, for head, workers and replicas."""
    namespace: str | None = None
    queue: str | None = None
    """Local queue of Kueue that admits the RayJob."""
    claim: str | None = None
    """PersistentVolumeClaim shared by all nodes, for storage and data that are not in S3."""
    redis: str | None = None
    """Address of a Redis for the head's state; None for RocksDB on a volume."""
    has_ui: bool = False
    """Whether the head of the cluster that stays up serves the dashboard."""


def documents_of(spec: JobSpec, options: Options) -> dict[str, list[Document]]:
    """Returns the documents of each file, by its path.

    Raises:
        InfeasibleError: if pods could not read a path of the job, for serve.grpc, or without
            resources.
    """
    _check_places(spec, options)
    _check_serve(spec)
    _check_resources(spec)
    folders = {
        "job": {"job.yaml": [objects.job_config_map(spec)], "rayjob.yaml": [_job(spec, options)]},
        "cluster": {"raycluster.yaml": [_standing(spec, options)]},
    }
    if spec.serve is not None:
        files = {
            "rayservice.yaml": [_service(spec, options)],
            "disruption.yaml": [objects.disruption_budget(spec)],
        }
        folders["endpoint"] = files
    by_path: dict[str, list[Document]] = {}
    for folder, files in folders.items():
        has_ui = options.has_ui and folder == "cluster"
        files["network.yaml"] = [objects.network_policy(spec, folder, has_ui=has_ui)]
        files["kustomization.yaml"] = [objects.kustomization(sorted(files), options.namespace)]
        by_path |= {f"{folder}/{name}": documents for name, documents in files.items()}
    if options.queue and spec.priority:
        made = {"priority.yaml": [objects.priority_class(spec)]}
        # of the whole cluster, and so in no namespace
        made["kustomization.yaml"] = [objects.kustomization(sorted(made), None)]
        by_path |= {f"priority/{name}": documents for name, documents in made.items()}
    return by_path


def _check_places(spec: JobSpec, options: Options) -> None:
    """Raise InfeasibleError if pods cannot reach a path of the job."""
    places = [] if spec.storage.startswith(S3_SCHEME) else [("storage", spec.storage)]
    for name, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        places += [(f"data.{name}.path", path) for path in source.paths if source.is_local]
    if spec.model.base.startswith((".", "/", "~")):
        places.append(("model.base", spec.model.base))
    for field, place in places:
        is_shared = options.claim and PurePosixPath(place).is_relative_to(pods.DATA)
        if not is_shared:
            raise InfeasibleError(
                f"{field} {place} is a path of this machine, which pods cannot read; use s3://…, or"
                f" --claim and a path below {pods.DATA}"
            )


def _check_serve(spec: JobSpec) -> None:
    """Raise InfeasibleError for serve.grpc."""
    if spec.serve and spec.serve.grpc:
        raise InfeasibleError(
            "serve.grpc is true, but KubeRay opens no gRPC port; leave it out and use HTTP"
        )


def _check_resources(spec: JobSpec) -> None:
    """Raise InfeasibleError without resources: a cluster of its own would have no worker pods."""
    if spec.resources is None:
        raise InfeasibleError(
            "resources is missing, and pods are made for the accelerators that it names; add"
            " resources.any_of, such as [{accelerators: T4:1}]"
        )


def _requests(spec: JobSpec) -> list[AcceleratorRequest]:
    assert spec.resources is not None
    return [p.accelerators for _, p in spec.resources.placements]


def _cluster(spec: JobSpec, options: Options, part: str, groups: list[Group]) -> Document:
    """Returns the Ray cluster specification, which all three kinds contain."""
    image = Image(options.image, options.claim, f"{spec.name}-job" if part == "job" else None)
    values = {**ENVIRONMENT, **(ingress.SWITCHES if part == "endpoint" else {})}
    environment: list[Document] = [{"name": name, "value": v} for name, v in values.items()]
    hub = (HUB_TOKEN,) if spec.publish else ()
    names = dict.fromkeys((*spec.secrets, *spec.notify_names, *hub))
    environment += [pods.from_secret(name) for name in names]
    marks = objects.marks_of(spec, part)
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": pods.secured(
            {
                "version": "v2",
                "idleTimeoutSeconds": IDLE_S,
                "resources": {
                    "requests": {"cpu": "200m", "memory": "512Mi"},
                    "limits": {"cpu": "500m", "memory": "512Mi"},
                },
            }
        ),
        "headGroupSpec": pods.head(image, environment, marks),
        "workerGroupSpecs": [pods.worker(group, image, environment, marks) for group in groups],
    }


def _job(spec: JobSpec, options: Options) -> Document:
    """Returns a RayJob that runs `winnow run` without the endpoint, and RETRIES times again."""
    labels = objects.kueue_labels(spec, options.queue)
    deadline: Document = {}
    if spec.budget and spec.budget.max_duration:
        seconds = int(spec.budget.max_duration.total_seconds())
        deadline = {"activeDeadlineSeconds": (RETRIES + 1) * seconds + KEPT_S}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": objects.metadata(spec, "job", **labels),
        "spec": {
            "entrypoint": ENTRYPOINT,
            "backoffLimit": RETRIES,
            **deadline,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_S,
            "rayClusterSpec": _cluster(spec, options, "job", pods.groups(_requests(spec))),
            "submitterPodTemplate": _submitter(spec, options),
        },
    }


def _submitter(spec: JobSpec, options: Options) -> Document:
    """Returns the pod that submits the job and prints its log."""
    small = {"cpu": "200m", "memory": "512Mi"}
    container = {
        "name": "ray-job-submitter",
        "image": options.image,
        "resources": {"requests": small, "limits": small},
    }
    return {
        "metadata": {"labels": objects.marks_of(spec, "job")},
        "spec": {
            "restartPolicy": "Never",
            "containers": [pods.secured(container)],
            **pods.unprivileged(),
        },
    }


def _standing(spec: JobSpec, options: Options) -> Document:
    """Returns a RayCluster for many jobs, which survives a restart of its head."""
    cluster = _cluster(spec, options, "cluster", pods.groups(_requests(spec)))
    if options.has_ui:
        service = f"{spec.name}-cluster-head-svc"  # KubeRay's name for it
        names = [service, *([f"{service}.{options.namespace}"] if options.namespace else [])]
        cluster["headGroupSpec"] = pods.with_ui(cluster["headGroupSpec"], spec.storage, names)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": objects.metadata(spec, "cluster"),
        "spec": cluster | {"gcsFaultToleranceOptions": _state(options)},
    }


def _service(spec: JobSpec, options: Options) -> Document:
    """Returns a RayService that serves the newest published version.

    On an update, new pods start before the old pods end.
    """
    serve = spec.serve
    assert serve is not None
    least, most = serve.replicas.min, serve.replicas.max
    count = serve.accelerators.count
    first, *others = [AcceleratorRequest(sku, count) for sku in catalogue.served_skus(serve)]
    groups = [Group(first, least, most, max(1, least))]
    groups += [Group(other, 0, most, 0) for other in others]
    cluster = _cluster(spec, options, "endpoint", groups)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": objects.metadata(spec, "endpoint"),
        "spec": {
            "upgradeStrategy": {"type": "NewCluster"},
            "rayClusterDeletionDelaySeconds": SWITCH_S,
            "excludeHeadPodFromServeSvc": True,
            "serveConfigV2": objects.to_text(serve_config(spec)),
            "rayClusterConfig": cluster | {"gcsFaultToleranceOptions": _state(options)},
        },
    }


def serve_config(spec: JobSpec) -> Document:
    """Returns Ray Serve's configuration with the application of the endpoint."""
    assert spec.serve is not None
    serve = spec.serve.model_dump(mode="json", exclude_unset=True)
    application = {
        "name": spec.name,
        "import_path": BUILDER,
        "route_prefix": spec.serve.route,
        "args": {"model": spec.name, "storage": spec.storage, "serve": serve},
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": pods.PORTS["serve"]},
        "applications": [application],
    }


def _state(options: Options) -> Document:
    """Returns the storage of the head's state, which survives a restart of the head."""
    if options.redis:
        key = {"name": "winnow-redis", "key": "password"}
        password = {"valueFrom": {"secretKeyRef": key}}
        return {"backend": "redis", "redisAddress": options.redis, "redisPassword": password}
    storage = {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}
    return {"backend": "rocksdb", "storage": storage | {"deletionPolicy": "DeleteWithCluster"}}
