"""Strict JSON Schemas of KubeRay's kinds, from its custom resource definitions.

    python infra/kuberay_schemas.py CRD.yaml … --out FOLDER

Writes `rayjob-v1.json` and the like, with which the tests check manifests: Kubernetes drops unknown
fields without an error, and these schemas refuse them. The definitions are in KubeRay's repository
under helm-chart/kuberay-operator/crds; the tests read the schemas from the folder in the
environment variable WINNOW_KUBERAY_SCHEMAS.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KEPT = {"properties", "items", "type", "required", "enum", "minimum", "maximum", "minItems"}
KEPT |= {"maxItems", "minLength", "maxLength", "pattern", "anyOf", "oneOf", "allOf", "not"}
KEPT |= {"additionalProperties"}
ANY_NAMES = "x-kubernetes-preserve-unknown-fields"
TEXT_OR_NUMBER = "x-kubernetes-int-or-string"


def main() -> int:
    """Read the definitions and write a strict schema for each version; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("definitions", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in arguments.definitions:
        for definition in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for name, schema in schemas(definition):
                (arguments.out / name).write_text(json.dumps(schema), encoding="utf-8")
                print(arguments.out / name)
    return 0


def schemas(definition: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the file name and the schema of each version of a definition."""
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    for version in spec["versions"]:
        found = strict(version["schema"]["openAPIV3Schema"])
        found["properties"] |= {
            "apiVersion": {"const": f"{spec['group']}/{version['name']}"},
            "kind": {"const": kind},
            "metadata": {"type": "object"},
        }
        found["required"] = sorted({*found.get("required", ()), "apiVersion", "kind", "spec"})
        yield f"{kind.lower()}-{version['name']}.json", found


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that refuses fields which its objects do not declare."""
    if node.get(TEXT_OR_NUMBER):
        return {"type": ["integer", "string"]}
    found = {key: value for key, value in node.items() if key in KEPT}
    for key in ("anyOf", "oneOf", "allOf"):
        if key in found:
            found[key] = [strict(part) for part in found[key]]
    for key in ("items", "additionalProperties", "not"):
        if isinstance(found.get(key), dict):
            found[key] = strict(found[key])
    if "properties" in found:
        found["properties"] = {name: strict(part) for name, part in found["properties"].items()}
        if not node.get(ANY_NAMES):
            found.setdefault("additionalProperties", False)
    return found


if __name__ == "__main__":
    sys.exit(main())
