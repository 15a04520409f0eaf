"""Measurements of earlier runs: taken over for the same work on the same ground alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.storage import manifest
from jobs.storage.storage import open_storage
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Launch
from orchestrator.records.store import Store, is_same_environment
from tests.builders import any_of, inventory, job, measurement, plan_of, speed, training_config

PLAN = plan_of(
    job(train__micro_batch_size=16, resources__any_of=any_of("cpu:1", "cpu:2")), inventory(cpu=4)
)
ON_ONE, ON_TWO = PLAN.candidates
ENVIRONMENT = {"torch": "2.13.0", "processor": "one of many"}
MEASURED = measurement(ON_ONE.id, environment=ENVIRONMENT, probe_s=6.0)
LAUNCH = Launch("cpu:1", 9.0, 1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows to train on."""
    for name in ("train", "eval"):
        (tmp_path / f"{name}.csv").write_text("text,label\nfine,1\n", encoding="utf-8")
    return tmp_path


def keep(folder: Path, candidate: Candidate = ON_ONE, **fields: object) -> Store:
    """A store that was given the measurement."""
    store = Store(open_storage(folder))
    config = training_config(folder, "base")
    measured = replace(measurement(candidate.id, environment=ENVIRONMENT), probe_s=6.0)
    measured = replace(measured, **fields)
    store.keep(candidate, config, measured, LAUNCH)
    return store


def test_the_same_work_is_found_with_its_launch(folder: Path) -> None:
    found = keep(folder).find(ON_ONE, training_config(folder, "base"))
    assert found is not None
    assert found.measurement == MEASURED
    assert found.launch == LAUNCH
    assert is_same_environment(found, ENVIRONMENT)


@pytest.mark.parametrize("changed", [{**ENVIRONMENT, "torch": "2.14.0"}, {"torch": "2.13.0"}, {}])
def test_another_ground_is_not_the_same(folder: Path, changed: dict[str, str]) -> None:
    found = keep(folder).find(ON_ONE, training_config(folder, "base"))
    assert found is not None
    assert not is_same_environment(found, changed)


def test_other_work_is_not_found(folder: Path) -> None:
    store = keep(folder)
    config = training_config(folder, "base")
    assert store.find(ON_TWO, config) is None
    assert store.find(ON_ONE, training_config(folder, "base", micro_batch_size=8)) is None
    (folder / "train.csv").write_text("text,label\nfine,0\n", encoding="utf-8")
    assert Store(open_storage(folder)).find(ON_ONE, config) is None


@pytest.mark.parametrize(
    "fields",
    [{"overheads": None}, {"speed": speed(others_cpu_share=0.9)}, {"is_steady": False}],
)
def test_what_is_not_to_be_trusted_is_not_kept(folder: Path, fields: dict[str, object]) -> None:
    assert keep(folder, **fields).find(ON_ONE, training_config(folder, "base")) is None


def test_what_was_reused_does_not_replace_what_was_measured(folder: Path) -> None:
    """A reused measurement has cost nothing, and the recorded one says what it cost."""
    config = training_config(folder, "base")
    store = keep(folder)
    store.keep(ON_ONE, config, replace(MEASURED, probe_s=0.0), None)
    found = store.find(ON_ONE, config)
    assert found is not None
    assert (found.measurement, found.launch) == (MEASURED, LAUNCH)


def test_a_store_hashes_the_rows_of_its_sweep_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each candidate again it would read gigabytes as often as there are candidates."""
    hashed: list[Path] = []
    identity = manifest.identity
    monkeypatch.setattr(manifest, "identity", lambda place: hashed.append(place) or identity(place))
    store = keep(folder)
    for candidate in (ON_ONE, ON_TWO):
        store.find(candidate, training_config(folder, "base"))
    assert [place.name for place in hashed] == ["train.csv", "eval.csv"]


def test_rows_from_elsewhere_are_measured_each_time(folder: Path) -> None:
    config = training_config(folder, "base")
    hub = config.data.model_copy(
        update={"train": config.data.train.model_copy(update={"path": "nyu-mll/glue"})}
    )
    assert keep(folder).find(ON_ONE, training_config(folder, "base", data=hub)) is None


def test_a_torn_file_counts_as_nothing(folder: Path) -> None:
    store = keep(folder)
    next((folder / "measurements").iterdir()).write_text("{", encoding="utf-8")
    assert store.find(ON_ONE, training_config(folder, "base")) is None
