"""A job on Kubernetes: what KubeRay and kustomize take, from the same job file. Pure.

Three folders, each for `kubectl apply -k`: `job` sweeps, trains and publishes on a cluster that
comes and goes with it (RayJob); `endpoint` serves the newest published version (RayService);
`cluster` stays up for `winnow submit` (RayCluster). Written for KubeRay 1.7.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

import yaml

from cluster import catalogue, ingress
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.storage.storage import S3_SCHEME
from orchestrator.kubernetes import pods
from orchestrator.kubernetes.pods import Document, Group, Image

RAY_VERSION = "2.60.0"
IDLE_S = 600
"""How long a group's pod may idle before it goes: a sweep comes back to hardware it has left."""
KEPT_S = 600
"""How long a finished RayJob stays for its log."""
RETRIES = 2
"""New clusters after the first; each goes on with the run."""
SWITCH_S = 60
"""How long a replaced endpoint's cluster stays for requests that are under way."""
ENTRYPOINT = f"python -m orchestrator run {pods.JOB_FOLDER}/job.yaml --resume --or-new"
BUILDER = "orchestrator.endpoint:build"
PART_OF = {"app.kubernetes.io/part-of": "winnow", "app.kubernetes.io/managed-by": "winnow"}
CLIENT = {"winnow.io/client": "true"}
"""Pods that may ask an endpoint."""
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HOME": "/tmp/huggingface",
    "WINNOW_HOME": "/tmp/winnow",
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAME": "^lo,docker",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the job file does not say."""

    image: str
    """With Ray, Winnow and what they need, for head, workers and replicas."""
    namespace: str | None = None
    queue: str | None = None
    """Kueue's local queue, which admits the RayJob."""
    claim: str | None = None
    """A volume that all nodes see, for storage and data that are not in S3."""
    redis: str | None = None
    """Address of a Redis that outlives the head; None for RocksDB on a volume of its own."""


def documents_of(spec: JobSpec, options: Options) -> dict[str, list[Document]]:
    """Documents by path of their file. Raises InfeasibleError for what pods could not do."""
    _check_places(spec, options)
    _check_serve(spec)
    folders = {
        "job": {"job.yaml": [_config(spec)], "rayjob.yaml": [_job(spec, options)]},
        "cluster": {"raycluster.yaml": [_standing(spec, options)]},
    }
    if spec.serve is not None:
        files = {"rayservice.yaml": [_service(spec, options)], "disruption.yaml": [_budget(spec)]}
        folders["endpoint"] = files
    found: dict[str, list[Document]] = {}
    for folder, files in folders.items():
        files["network.yaml"] = [_network(spec, folder)]
        files["kustomization.yaml"] = [_kustomization(sorted(files), options)]
        found |= {f"{folder}/{name}": documents for name, documents in files.items()}
    return found


class _Dumper(yaml.SafeDumper):
    """Without anchors, and texts of many lines as they are: for people to read and change."""

    def ignore_aliases(self, data: object) -> bool:
        """Write the same value again."""
        return True


def _lines(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _lines)


def to_text(*documents: Document) -> str:
    """A file of them."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _check_places(spec: JobSpec, options: Options) -> None:
    """What a job keeps and reads must be where pods see it."""
    places = [] if spec.storage.startswith(S3_SCHEME) else [("storage", spec.storage)]
    for name, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        places += [(f"data.{name}.path", path) for path in source.paths if source.is_local]
    if spec.model.base.startswith((".", "/", "~")):
        places.append(("model.base", spec.model.base))
    for field, place in places:
        is_shared = options.claim and PurePosixPath(place).is_relative_to(pods.DATA)
        if not is_shared:
            raise InfeasibleError(
                f"{field} {place} is a place of this machine, which pods do not see: use s3://…, or"
                f" name a volume with --claim and a path below {pods.DATA}"
            )


def _check_serve(spec: JobSpec) -> None:
    """What manifests cannot give."""
    if spec.serve and spec.serve.grpc:
        raise InfeasibleError(
            "serve.grpc is true, and KubeRay opens no port for it; leave it out, and ask over HTTP"
        )


def _requests(spec: JobSpec) -> list[AcceleratorRequest]:
    return [p.accelerators for _, p in spec.resources.placements] if spec.resources else []


def _marks(spec: JobSpec, part: str) -> Document:
    """Labels by which policies and people find pods."""
    return {**PART_OF, "app.kubernetes.io/name": spec.name, "app.kubernetes.io/component": part}


def _meta(spec: JobSpec, part: str, **labels: str) -> Document:
    return {"name": f"{spec.name}-{part}", "labels": _marks(spec, part) | labels}


def _cluster(spec: JobSpec, options: Options, part: str, groups: list[Group]) -> Document:
    """The Ray cluster that all three kinds have in them."""
    image = Image(options.image, options.claim, f"{spec.name}-job" if part == "job" else None)
    values = {**ENVIRONMENT, **(ingress.SWITCHES if part == "endpoint" else {})}
    environment: list[Document] = [{"name": name, "value": v} for name, v in values.items()]
    environment += [pods.from_secret(name) for name in spec.secrets]
    marks = _marks(spec, part)
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
    """`winnow run` without its endpoint, once, with as many new clusters as it takes."""
    queue = {"kueue.x-k8s.io/queue-name": options.queue} if options.queue else {}
    deadline: Document = {}
    if spec.budget and spec.budget.max_duration:
        seconds = int(spec.budget.max_duration.total_seconds())
        deadline = {"activeDeadlineSeconds": (RETRIES + 1) * seconds + KEPT_S}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _meta(spec, "job", **queue),
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
    """The pod that hands the job in and shows its log."""
    small = {"cpu": "200m", "memory": "512Mi"}
    container = {
        "name": "ray-job-submitter",
        "image": options.image,
        "resources": {"requests": small, "limits": small},
    }
    return {
        "metadata": {"labels": _marks(spec, "job")},
        "spec": {
            "restartPolicy": "Never",
            "containers": [pods.secured(container)],
            **pods.unprivileged(),
        },
    }


def _standing(spec: JobSpec, options: Options) -> Document:
    """A cluster for many jobs, whose head may die."""
    cluster = _cluster(spec, options, "cluster", pods.groups(_requests(spec)))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _meta(spec, "cluster"),
        "spec": cluster | {"gcsFaultToleranceOptions": _state(options)},
    }


def _service(spec: JobSpec, options: Options) -> Document:
    """The newest published version, on pods that come before old ones go."""
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
        "metadata": _meta(spec, "endpoint"),
        "spec": {
            "upgradeStrategy": {"type": "NewCluster"},
            "rayClusterDeletionDelaySeconds": SWITCH_S,
            "excludeHeadPodFromServeSvc": True,
            "serveConfigV2": to_text(serve_config(spec)),
            "rayClusterConfig": cluster | {"gcsFaultToleranceOptions": _state(options)},
        },
    }


def serve_config(spec: JobSpec) -> Document:
    """What Ray Serve is told: which application, built from what."""
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
    """Where the head's state outlives the head."""
    if options.redis:
        key = {"name": "winnow-redis", "key": "password"}
        password = {"valueFrom": {"secretKeyRef": key}}
        return {"backend": "redis", "redisAddress": options.redis, "redisPassword": password}
    storage = {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}
    return {"backend": "rocksdb", "storage": storage | {"deletionPolicy": "DeleteWithCluster"}}


def _budget(spec: JobSpec) -> Document:
    """Of the pods that answer, draining nodes may take one at a time."""
    marks = {**_marks(spec, "endpoint"), "ray.io/node-type": "worker"}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(spec, "endpoint"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": marks}},
    }


def _network(spec: JobSpec, part: str) -> Document:
    """Who may reach the pods: each other, KubeRay's operator, and clients of an endpoint."""
    own = _marks(spec, part)
    anywhere: Document = {"namespaceSelector": {}}
    operator = anywhere | {"podSelector": {"matchLabels": OPERATOR}}
    rules: list[Document] = [
        {"from": [{"podSelector": {"matchLabels": own}}]},
        {"from": [operator], "ports": _ports("dashboard", "serve")},
    ]
    if part == "endpoint":
        clients = anywhere | {"podSelector": {"matchLabels": CLIENT}}
        rules.append({"from": [clients], "ports": _ports("serve")})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(spec, part),
        "spec": {"podSelector": {"matchLabels": own}, "policyTypes": ["Ingress"], "ingress": rules},
    }


def _ports(*names: str) -> list[Document]:
    return [{"protocol": "TCP", "port": pods.PORTS[name]} for name in names]


def _config(spec: JobSpec) -> Document:
    """The job file, without the endpoint, which is a RayService of its own."""
    values = spec.model_dump(mode="json", exclude_unset=True)
    values.pop("serve", None)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(spec, "job"),
        "data": {"job.yaml": to_text(values)},
    }


def _kustomization(resources: list[str], options: Options) -> Document:
    namespace = {"namespace": options.namespace} if options.namespace else {}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **namespace,
        "resources": resources,
    }
