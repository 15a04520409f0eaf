"""A version knows how it was deployed, so that its model's name is enough to deploy it again."""

from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import Storage, open_storage
from orchestrator.loading import load_job
from orchestrator.records import deployments, registry, removal
from serve.version import ModelVersion
from tests.builders import job
from tests.orchestrator.records import acting

SERVED = {"route": "/reviews", "engine": "torch-fp32"}


def publish(storage: Storage, folder: Path, name: str) -> ModelVersion:
    reference = acting.checkpoint(folder / name, name)
    spec = job(serve={"route": "/first"})
    return registry.publish(spec, reference, ("a", "b"), run_id=name, storage=storage)


def deploy(storage: Storage, version: ModelVersion, **serving: object) -> None:
    """What a deployment records."""
    values = ServeSpec.model_validate({**SERVED, **serving})
    deployments.keep(storage, version.name, version.id, values)
    registry.note_deployed(storage, version)


def test_a_promotion_takes_the_newest_settings_and_a_rollback_its_own(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "storage")
    one, two, new = (publish(storage, tmp_path, name) for name in ("one", "two", "new"))
    deploy(storage, one)
    deploy(storage, two, engine="openvino-fp32", rollout={"hold": "5s"})
    promoted = deployments.job_to_promote(storage, "reviews", new.id)
    assert promoted["serve"]["engine"] == "openvino-fp32"
    older = deployments.before(storage, "reviews")
    assert older == one.id
    restored = deployments.job_to_restore(storage, "reviews", older)
    assert restored["serve"] == SERVED
    spec = load_job(restored, ["serve.rollout=null"], is_elsewhere=True)
    assert (spec.name, spec.storage) == ("reviews", storage.url)
    assert spec.serve is not None
    assert spec.serve.route == "/reviews"


def test_a_version_that_was_never_deployed_is_served_as_its_job_says(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "storage")
    version = publish(storage, tmp_path, "one")
    promoted = deployments.job_to_promote(storage, "reviews", version.id)
    assert promoted["serve"] == {"route": "/first"}
    with pytest.raises(RunError, match="no version 'other'"):
        deployments.job_to_promote(storage, "reviews", "other")


def test_a_job_without_a_serve_section_says_what_to_give() -> None:
    with pytest.raises(RunError, match="give a job file"):
        deployments.with_serving({"name": "reviews"}, None, "reviews@a", "s")


def test_a_deleted_version_is_not_gone_back_to(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "storage")
    one, two, three = (publish(storage, tmp_path, name) for name in ("one", "two", "three"))
    for version in (one, two, three):
        deploy(storage, version)
    removal.remove_version(storage, "reviews", two.id)
    assert deployments.before(storage, "reviews") == one.id
    assert registry.exists(storage, "reviews", one.id)
    removal.remove_version(storage, "reviews", one.id)
    with pytest.raises(RunError, match="no other version of reviews was deployed"):
        deployments.before(storage, "reviews")
