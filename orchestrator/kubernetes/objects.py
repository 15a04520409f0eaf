"""Builds the Kubernetes objects of a job that are not KubeRay's: policies, ConfigMap, kustomize."""

import yaml

from jobs.loader import variables
from jobs.spec import JobSpec
from orchestrator.kubernetes import pods
from orchestrator.kubernetes.pods import Document

PART_OF = {"app.kubernetes.io/part-of": "winnow", "app.kubernetes.io/managed-by": "winnow"}
CLIENT = {"winnow.io/client": "true"}
"""Label of the pods that may send requests to an endpoint, and to the dashboard."""
KUEUE = "kueue.x-k8s.io"
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}


class _Dumper(yaml.SafeDumper):
    """Writes YAML without anchors and with block literals, so that people can read and edit it."""

    def ignore_aliases(self, data: object) -> bool:
        """Repeat equal values instead of using anchors."""
        return True


def _lines(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _lines)


def to_text(*documents: Document) -> str:
    """Returns the text of a YAML file with these documents."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def marks_of(spec: JobSpec, part: str) -> Document:
    """Returns the labels of a part's pods."""
    return {**PART_OF, "app.kubernetes.io/name": spec.name, "app.kubernetes.io/component": part}


def metadata(spec: JobSpec, part: str, **labels: str) -> Document:
    """Returns the name and labels of an object."""
    return {"name": f"{spec.name}-{part}", "labels": marks_of(spec, part) | labels}


def kueue_labels(spec: JobSpec, queue: str | None) -> dict[str, str]:
    """Returns the labels by which Kueue admits a job: its local queue, and its priority unless 0.

    Source: kueue.sigs.k8s.io, WorkloadPriorityClass. A class that does not exist admits no job.
    """
    if queue is None:
        return {}
    labels = {f"{KUEUE}/queue-name": queue}
    return labels | ({f"{KUEUE}/priority-class": _class_of(spec.priority)} if spec.priority else {})


def priority_class(spec: JobSpec) -> Document:
    """Returns Kueue's class of the job's priority, which all jobs of this priority share."""
    return {
        "apiVersion": f"{KUEUE}/v1beta1",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": _class_of(spec.priority), "labels": dict(PART_OF)},
        "value": spec.priority,
        "description": f"Winnow's jobs with priority: {spec.priority}",
    }


def _class_of(priority: int) -> str:
    return f"winnow-{'minus-' if priority < 0 else ''}{abs(priority)}"


def disruption_budget(spec: JobSpec) -> Document:
    """Returns a disruption budget: node drains may evict one replica pod at a time."""
    marks = {**marks_of(spec, "endpoint"), "ray.io/node-type": "worker"}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(spec, "endpoint"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": marks}},
    }


def network_policy(spec: JobSpec, part: str, *, has_ui: bool = False) -> Document:
    """Returns a policy that admits the part's own pods, KubeRay's operator, and clients.

    Clients reach endpoints, and the dashboard where the part has it.
    """
    own = marks_of(spec, part)
    anywhere: Document = {"namespaceSelector": {}}
    operator = anywhere | {"podSelector": {"matchLabels": OPERATOR}}
    rules: list[Document] = [
        {"from": [{"podSelector": {"matchLabels": own}}]},
        {"from": [operator], "ports": _ports("dashboard", "serve")},
    ]
    clients = anywhere | {"podSelector": {"matchLabels": CLIENT}}
    if part == "endpoint":
        rules.append({"from": [clients], "ports": _ports("serve")})
    if has_ui:
        rules.append({"from": [clients], "ports": [{"protocol": "TCP", "port": pods.UI_PORT}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(spec, part),
        "spec": {"podSelector": {"matchLabels": own}, "policyTypes": ["Ingress"], "ingress": rules},
    }


def _ports(*names: str) -> list[Document]:
    return [{"protocol": "TCP", "port": pods.PORTS[name]} for name in names]


def job_config_map(spec: JobSpec) -> Document:
    """Returns a ConfigMap with the job file, without `serve`: the endpoint is a RayService."""
    values = spec.model_dump(mode="json", exclude_unset=True)
    values.pop("serve", None)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, "job"),
        "data": {"job.yaml": variables.escaped(to_text(values))},
    }


def kustomization(resources: list[str], namespace: str | None) -> Document:
    """Returns a kustomization of these files, in a namespace if one is given."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": resources,
    }
