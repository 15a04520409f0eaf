"""The application that a RayService builds from its configuration, on a real cluster."""

import contextlib
import importlib
from pathlib import Path

import httpx
import pytest

from cluster.session import Connection
from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.kubernetes import manifests
from serve.version import ModelVersion
from tests.builders import eventually, job

pytestmark = pytest.mark.ray


def test_a_configured_application_answers_with_the_newest_version(
    ray_cluster: Connection, version: ModelVersion
) -> None:
    import ray.serve
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

    storage = str(Path(version.path).parents[2])
    serve = {"route": "/configured", "engine": "torch-fp32"}
    spec = job(name=version.name, storage=storage, serve=serve)
    (application,) = manifests.serve_config(spec)["applications"]
    module, _, name = application["import_path"].partition(":")
    builder = getattr(importlib.import_module(module), name)
    bound = call_user_app_builder_with_args_if_necessary(builder, application["args"])
    ray.serve.start(http_options={"host": "127.0.0.1", "port": ray_cluster.serve_port})
    ray.serve.run(bound, name=application["name"], route_prefix=application["route_prefix"])
    url = f"http://127.0.0.1:{ray_cluster.serve_port}{application['route_prefix']}"
    try:

        def answers() -> bool:
            with contextlib.suppress(httpx.ReadTimeout):  # not yet
                found = httpx.post(f"{url}/predict", json={"inputs": "a superb film"}, timeout=10)
                return found.status_code == httpx.codes.OK and found.json()["label"] == "positive"
            return False

        assert eventually(answers, within_s=240)
        assert httpx.get(f"{url}/health", timeout=60).json()["version"] == version.id
    finally:
        ray.serve.delete(application["name"])


def test_an_endpoint_without_a_version_says_so(tmp_path: Path) -> None:
    from orchestrator.endpoint import EndpointArguments, build

    arguments = EndpointArguments.model_validate(
        {"model": "nobody", "storage": str(tmp_path), "serve": {"route": "/x"}}
    )
    with pytest.raises(RunError, match="no version of nobody is published"):
        build(arguments)
    assert not open_storage(tmp_path).objects.children("models")
