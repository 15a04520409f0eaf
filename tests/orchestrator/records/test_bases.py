"""A published version as the base of the next job, by its alias or its id."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.errors import JobFileError
from jobs.storage.storage import open_storage
from jobs.training.events import Event, Started
from jobs.training.loop import train
from orchestrator.decisions.resolve import Execution, training_config
from orchestrator.loading import load_job
from orchestrator.records import registry
from serve.version import ModelVersion

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def content(reviews: Path, folder: Path, base: str) -> dict[str, Any]:
    """A job over the reviews."""
    return {
        "version": 1,
        "name": "reviews",
        "model": {"base": base},
        "data": {
            "train": {"path": str(reviews / "train.csv")},
            "eval": {"path": str(reviews / "eval.csv")},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1},
        "storage": str(folder),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def first(reviews: Path, tiny_model: str, folder: Path) -> ModelVersion:
    """The version of a first job."""
    spec = load_job(content(reviews, folder, tiny_model))
    config = training_config(spec, Execution(8, "fp32", "cpu"), {})
    reference = train(config, lambda _: None, folder / "checkpoints")
    storage = open_storage(folder)
    labels = ("negative", "positive")
    return registry.publish(spec, reference, labels, run_id="one", storage=storage)


@pytest.mark.parametrize("which", ["", "@latest", "@{id}"])
def test_a_base_is_a_version_by_alias_or_id(
    which: str, first: ModelVersion, reviews: Path, folder: Path
) -> None:
    base = f"registry://reviews{which.format(id=first.id)}"
    assert load_job(content(reviews, folder, base)).model.base == first.path


def test_the_next_job_goes_on_from_it_and_its_version_says_so(
    first: ModelVersion, reviews: Path, folder: Path
) -> None:
    spec = load_job(content(reviews, folder, "registry://reviews@latest"))
    events: list[Event] = []
    config = training_config(spec, Execution(8, "fp32", "cpu"), {})
    reference = train(config, events.append, folder / "second")
    started = next(event for event in events if isinstance(event, Started))
    assert any("its head is kept" in remark for remark in started.remarks)
    storage = open_storage(folder)
    second = registry.publish(spec, reference, first.labels, run_id="two", storage=storage)
    card = (Path(second.path) / "README.md").read_text(encoding="utf-8")
    assert f"base_model: registry://reviews@{first.id}\n" in card
    again = load_job(content(reviews, folder, "registry://reviews@latest"))
    assert again.model.base == second.path  # the alias moved; the first job keeps what it found


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("registry://Reviews!", "names no published version; write registry://name@latest or"),
        ("registry://others", "no version of others is published in"),
        ("registry://reviews@deployed", "reviews has no version 'deployed' in"),
        ("registry://reviews@0123", "reviews has no version '0123' in"),
    ],
)
def test_a_base_that_is_not_there_is_refused_in_its_place(
    base: str, message: str, first: ModelVersion, reviews: Path, folder: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(content(reviews, folder, base), sort_keys=False))
    with pytest.raises(JobFileError) as refused:
        load_job(job)
    (problem,) = refused.value.problems
    assert message in problem.message
    assert (problem.path, problem.line) == ("model.base", 4)
