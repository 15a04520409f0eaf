"""A run goes on only with the data, base model and code that it began with."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import RunError, TrainingError
from jobs.spec import JobSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.loop import train
from orchestrator.cli.submit import submission_id
from orchestrator.records import inputs
from tests.builders import job, training_config


class Yesterday(datetime):
    """A clock of the past."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Yesterday":
        """Always the same."""
        return cls(2026, 1, 2, tzinfo=tz)


@pytest.fixture
def spec(reviews: Path, tiny_model: str, tmp_path: Path) -> JobSpec:
    """A job with files of its own."""
    for name in ("train.csv", "eval.csv"):
        shutil.copy(reviews / name, tmp_path)
    base = shutil.copytree(tiny_model, tmp_path / "base")
    return job(
        data__train={"path": str(tmp_path / "train.csv")},
        data__eval={"path": str(tmp_path / "eval.csv")},
        model__base=str(base),
    )


def exchange(path: Path) -> None:
    """Another byte, and the same size."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "what"),
    [("train.csv", "data.train"), ("eval.csv", "data.eval"), ("base/config.json", "model.base")],
)
def test_a_run_is_not_resumed_with_an_exchanged_file(
    name: str, what: str, spec: JobSpec, tmp_path: Path
) -> None:
    """A planted fault: the file is another one than when the run began."""
    storage = open_storage(tmp_path / "storage")
    run = inputs.find_or_create(storage, spec)
    submitted = submission_id(spec)
    assert inputs.find_or_create(storage, spec, resume=True) == run
    exchange(tmp_path / name)
    with pytest.raises(RunError, match=f"^{what} changed since run {run.id} began"):
        inputs.find_or_create(storage, spec, resume=True)
    assert submission_id(spec) != submitted
    assert inputs.find_or_create(storage, spec, resume=True, accepts_changes=True) == run
    assert run.notes[-1]["changes"] == what
    assert inputs.find_or_create(storage, spec, resume=True) == run  # it goes on with them now


def test_the_newest_run_of_the_same_job_alone_is_resumed(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path / "storage")
    monkeypatch.setattr(inputs, "datetime", Yesterday)  # runs are named by the second
    older = inputs.find_or_create(storage, spec)
    monkeypatch.undo()
    newest = inputs.find_or_create(storage, spec)
    assert newest != older
    assert inputs.find_or_create(storage, spec, resume=True) == newest
    assert [note["event"] for note in newest.notes] == ["created", "resumed"]
    with pytest.raises(RunError, match="a changed job is a new job"):
        inputs.find_or_create(storage, spec.model_copy(update={"seed": 1}), resume=True)


def test_a_submission_with_other_data_is_another_run(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path / "storage")
    monkeypatch.setattr(inputs, "datetime", Yesterday)  # runs are named by the second
    first = inputs.find_or_create(storage, spec, resume=True, or_new=True)
    monkeypatch.undo()
    assert inputs.find_or_create(storage, spec, resume=True, or_new=True) == first
    exchange(tmp_path / "train.csv")
    assert inputs.find_or_create(storage, spec, resume=True, or_new=True) != first


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_checkpoint_of_other_rows_is_gone_on_from_only_if_that_is_accepted(
    *, is_accepted: bool, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    for name in ("train.csv", "eval.csv"):
        shutil.copy(reviews / name, tmp_path)
    saving = CheckpointSpec(every=Cadence(2, "step"))
    fields = {"checkpoint": saving, "accepts_changes": is_accepted, "epochs": 1.0}
    config = training_config(tmp_path, tiny_model, **fields)
    steps = iter(range(100))
    leave: Callable[[], bool] = lambda: next(steps) >= 2  # noqa: E731 - a counter
    train(config, lambda _: None, tmp_path / "checkpoints", leave)
    text = (tmp_path / "train.csv").read_text(encoding="utf-8")
    (tmp_path / "train.csv").write_text(text.replace("film", "play"), encoding="utf-8")
    if is_accepted:
        assert train(config, lambda _: None, tmp_path / "checkpoints").step == 5
        return
    with pytest.raises(TrainingError, match="was trained on other rows than the job names now"):
        train(config, lambda _: None, tmp_path / "checkpoints")


@pytest.mark.parametrize(
    "other", [{"precision": "bf16"}, {"optimizer": OptimizerSpec(lr=1e-4)}, {"epochs": 2.0}]
)
def test_a_checkpoint_of_other_settings_is_gone_on_from_only_if_that_is_accepted(
    other: dict[str, Any], reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """As of another winner of the same run, whose learning rate or precision differ."""
    saving = {"checkpoint": CheckpointSpec(every=Cadence(2, "step"))}
    steps = iter(range(100))
    leave: Callable[[], bool] = lambda: next(steps) >= 2  # noqa: E731 - a counter
    checkpoints = tmp_path / "checkpoints"
    begun = training_config(reviews, tiny_model, **saving)
    train(begun, lambda _: None, checkpoints, leave)
    changed = replace(begun, **other)
    with pytest.raises(TrainingError, match="was trained with another optimizer, schedule, length"):
        train(changed, lambda _: None, checkpoints)
    smaller = replace(begun, micro_batch_size=16)  # which learns the same
    assert train(smaller, lambda _: None, checkpoints).step == 5
    last = train(replace(changed, accepts_changes=True), lambda _: None, checkpoints)
    assert last.step == (10 if "epochs" in other else 5)
