"""Definitions of kinds become schemas that refuse what Kubernetes would drop without a word."""

import copy
import json
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from infra import kuberay_schemas

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["entry"],
    "properties": {
        "entry": {"type": "string", "description": "what runs"},
        "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "groups": {
            "type": "array",
            "items": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
        "free": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"known": {"type": "string"}},
        },
    },
}
DEFINITION = {
    "spec": {
        "group": "ray.io",
        "names": {"kind": "RayThing"},
        "versions": [
            {
                "name": "v1",
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}},
            }
        ],
    }
}
GOOD: dict[str, Any] = {
    "apiVersion": "ray.io/v1",
    "kind": "RayThing",
    "metadata": {"name": "x"},
    "spec": {
        "entry": "run",
        "port": "http",
        "labels": {"any/name": "x"},
        "groups": [{"replicas": 1}],
        "free": {"whatever": 1},
    },
}


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "crd.yaml").write_text(yaml.safe_dump(DEFINITION))
    words = ["kuberay_schemas.py", str(folder / "crd.yaml"), "--out", str(folder / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        assert kuberay_schemas.main() == 0
    return json.loads((folder / "out" / "raything-v1.json").read_text())


def test_a_good_document_passes(schema: Any) -> None:
    jsonschema.validate(GOOD, schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "RayThings"),
        (("apiVersion",), "ray.io/v2"),
        (("spec", "entrypoint"), "run"),
        (("spec", "entry"), 3),
        (("spec", "port"), 1.5),
        (("spec", "labels", "x"), 3),
        (("spec", "groups", 0, "replica"), 1),
    ],
)
def test_a_mistake_is_found(path: tuple[Any, ...], value: object, schema: Any) -> None:
    document = copy.deepcopy(GOOD)
    place: Any = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
