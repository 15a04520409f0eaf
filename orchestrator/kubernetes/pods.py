"""Builds the pods of a Ray cluster on Kubernetes: devices, node selection, permissions."""

import copy
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster import catalogue, labels
from jobs.spec.quantities import AcceleratorRequest
from raywinnow import COMMAND

Document = dict[str, Any]

PRODUCT_LABEL = "nvidia.com/gpu.product"
PRODUCTS: dict[str, tuple[str, ...]] = {
    "T4": ("Tesla-T4",),
    "V100-16GB": ("Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB"),
    "V100-32GB": ("Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-32GB", "Tesla-V100-SXM3-32GB"),
    "A10": ("NVIDIA-A10",),
    "A10G": ("NVIDIA-A10G",),
    "L4": ("NVIDIA-L4",),
    "L40S": ("NVIDIA-L40S",),
    "A40": ("NVIDIA-A40",),
    "A100-40GB": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
    "A100-80GB": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
    "RTX3090": ("NVIDIA-GeForce-RTX-3090",),
    "RTX4090": ("NVIDIA-GeForce-RTX-4090",),
    "RTX5090": ("NVIDIA-GeForce-RTX-5090",),
    "RTX-A6000": ("NVIDIA-RTX-A6000",),
    "RTX-6000-Ada": ("NVIDIA-RTX-6000-Ada-Generation",),
    "H100-PCIe": ("NVIDIA-H100-PCIe",),
    "H100-SXM": ("NVIDIA-H100-80GB-HBM3",),
    "H200": ("NVIDIA-H200",),
    "B200": ("NVIDIA-B200",),
}
"""Node labels of NVIDIA's GPU feature discovery: the driver's product name with dashes. Nodes with
other SKUs need the label winnow.io/sku, which their administrator sets."""
DEVICES = {"MI300X": "amd.com/gpu"}
NVIDIA = "nvidia.com/gpu"
CORES, MEMORY_GIB = 4, 16
"""CPU cores and GiB of memory of a pod for each of its GPUs, and at least."""
SHARED_MEMORY = "8Gi"
"""Size of /dev/shm, which Ray's object store and NCCL use; Kubernetes' 64 MiB is too small."""
HEAD = {"cpu": "2", "memory": "8Gi"}
DATA = "/mnt/winnow"
"""Mount path of the volume claim."""
JOB_FOLDER = "/etc/winnow"
SECRETS = "winnow-secrets"
"""Secret whose keys become environment variables: S3 keys, HF_TOKEN, endpoint tokens."""
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "serve": 8000, "metrics": 8080}
"""Ports of the head, as KubeRay expects them; workers have serve and metrics."""
UI_PORT = 8270
UI_SECRET, UI_FOLDER = "winnow-ui", "/etc/winnow-ui"
"""Secret whose key `tokens` is the file of the dashboard's tokens, and where it is mounted."""
UI_LOG = "/tmp/winnow-ui.log"
UI_AGAIN_S = 10
"""Pause before the dashboard is started again, such as until the Secret is there."""


@dataclass(frozen=True, slots=True)
class Image:
    """The image of pods, and the volumes that are mounted into them."""

    name: str
    claim: str | None = None
    """PersistentVolumeClaim, mounted at DATA."""
    config: str | None = None
    """ConfigMap with the job file, mounted at JOB_FOLDER."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pods with the same devices; each pod is one Ray node."""

    request: AcceleratorRequest
    least: int
    """Fewest pods."""
    most: int
    first: int
    """Pods at the start, before the autoscaler changes the number."""

    @property
    def name(self) -> str:
        """The group's name in Kubernetes' spelling."""
        return self.request.name.lower()


def groups(requests: Sequence[AcceleratorRequest]) -> list[Group]:
    """Returns one group for each SKU, with a pod as large as its largest placement.

    The pod starts with the cluster and is removed when it idles.
    """
    most: dict[str, int] = {}
    for request in requests:
        sku = catalogue.find(request.name).name
        most[sku] = max(most.get(sku, 0), request.count)
    return [Group(AcceleratorRequest(sku, n), 0, 1, 1) for sku, n in most.items()]


def head(image: Image, environment: Sequence[Document], marks: Document) -> Document:
    """Returns the head's group, which schedules and runs drivers but never trains."""
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _template("ray-head", image, HEAD, environment, tuple(PORTS), marks),
    }


def with_ui(head: Document, storage: str, names: Sequence[str]) -> Document:
    """Returns the head's group with the dashboard beside Ray, in Ray's container.

    In a container of its own it could not join Ray, whose sockets and memory it would not see.

    Args:
        head: The head's group.
        storage: Storage whose runs the dashboard shows.
        names: Names of hosts by which browsers may reach it.
    """
    words = ["ui", "--host", "0.0.0.0", "--port", str(UI_PORT), "--storage", storage]
    words += ["--address", f"127.0.0.1:{PORTS['gcs']}", "--tokens", f"{UI_FOLDER}/tokens"]
    words += [word for name in names for word in ("--name", name)]
    command = f"{COMMAND} {shlex.join(words)}"
    loop = f"while true; do {command}; sleep {UI_AGAIN_S}; done >{UI_LOG} 2>&1 &"
    made = copy.deepcopy(head)
    pod = made["template"]["spec"]
    secret = {"secretName": UI_SECRET, "optional": True}
    pod["volumes"].append({"name": "ui", "secret": secret})
    container = pod["containers"][0]
    container["volumeMounts"].append({"name": "ui", "mountPath": UI_FOLDER, "readOnly": True})
    container["ports"].append({"name": "winnow-ui", "containerPort": UI_PORT})
    container["lifecycle"] = {"postStart": {"exec": {"command": ["sh", "-c", loop]}}}
    return made


def worker(
    group: Group, image: Image, environment: Sequence[Document], marks: Document
) -> Document:
    """Returns a SKU's group; it selects nodes by product and gives Ray the label winnow.io/sku."""
    sku, count = group.request.name, group.request.count
    is_cpu = sku == catalogue.CPU
    cores, memory = (count, count) if is_cpu else (CORES * count, count)
    resources = {"cpu": str(max(CORES, cores)), "memory": f"{MEMORY_GIB * memory}Gi"}
    if not is_cpu:
        resources[DEVICES.get(sku, NVIDIA)] = str(count)
    names = ("serve", "metrics")
    template = _template("ray-worker", image, resources, environment, names, marks)
    if not is_cpu:
        template["spec"] |= _nodes(sku)
    return {
        "groupName": group.name,
        "replicas": group.first,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "numOfHosts": 1,
        "labels": {labels.SKU: sku},
        "rayStartParams": {},
        "template": template,
    }


def from_secret(name: str) -> Document:
    """Returns a required environment variable whose value is the Secret's key of that name."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": name}}}


def secured(container: Document) -> Document:
    """Returns the container without privileges and without ways to gain them."""
    return container | {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        }
    }


def unprivileged() -> Document:
    """Returns the pod fields that make it run as an unprivileged user, who owns its volumes."""
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _template(
    name: str,
    image: Image,
    resources: Document,
    environment: Sequence[Document],
    ports: Sequence[str],
    marks: Document,
) -> Document:
    volumes: list[Document] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    ]
    mounts: list[Document] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if image.claim:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": image.claim}})
        mounts.append({"name": "data", "mountPath": DATA})
    if image.config and name == "ray-head":
        volumes.append({"name": "job", "configMap": {"name": image.config}})
        mounts.append({"name": "job", "mountPath": JOB_FOLDER, "readOnly": True})
    container = {
        "name": name,
        "image": image.name,
        "env": list(environment),
        "envFrom": [{"secretRef": {"name": SECRETS, "optional": True}}],
        "ports": [{"name": port, "containerPort": PORTS[port]} for port in ports],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "volumeMounts": mounts,
    }
    pod = {"containers": [secured(container)], "volumes": volumes, **unprivileged()}
    if name == "ray-head":
        pod["automountServiceAccountToken"] = True  # the autoscaler requests pods from Kubernetes
    return {"metadata": {"labels": marks}, "spec": pod}


def _nodes(sku: str) -> Document:
    """Returns the node affinity of a SKU, and the toleration of its nodes' taint."""
    products = PRODUCTS.get(sku)
    key, values = (PRODUCT_LABEL, products) if products else (labels.SKU, (sku,))
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    device = DEVICES.get(sku, NVIDIA)
    return {
        "affinity": {"nodeAffinity": required},
        "tolerations": [{"key": device, "operator": "Exists", "effect": "NoSchedule"}],
    }
