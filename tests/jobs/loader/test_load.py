"""Reading good job files: YAML's traps, overrides, files on disk, the schema."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from cluster.catalogue import accelerator_rules
from jobs.errors import JobFileError
from jobs.loader import load, loads
from jobs.loader.fields import is_field
from jobs.loader.files import files_exist
from jobs.loader.schema import schema_text
from jobs.loader.source import read_scalar
from jobs.loader.words import OTHER_TRAINERS
from tests.builders import MINIMAL

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-5", 3e-5),
        ("1e3", 1000.0),
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("010", 10),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("true", True),
        ("~", None),
        ("2026-11-21", "2026-11-21"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert read_scalar(text) == value
    assert type(read_scalar(text)) is type(value)


def test_a_learning_rate_without_a_point_is_a_number() -> None:
    assert loads(MINIMAL + "train: {optimizer: {lr: 3e-5}}").train.optimizer.lr == 3e-5


def test_settings_override_single_fields() -> None:
    settings = ["train.epochs=2", "serve.route=/a", "seed=9", "owned.T4.purchase=800"]
    spec = loads(MINIMAL, settings=settings)
    assert (spec.train.epochs, spec.seed, spec.owned["T4"].purchase) == (2, 9, 800)
    assert spec.serve is not None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=2", "train.epoch: is not a field of a job; did you mean 'train.epochs'?"),
        ("train.epochs", "is not PATH=VALUE"),
        ("learning_rate=1", "is not a field of a job; write train.optimizer.lr"),
        ("train.gpus=1", "is not a field of a job; write resources.any_of: [{accelerators"),
        ("train.turns=1", "is not a field of a job; `winnow schema --markdown` lists all fields"),
        ("trian.epochs=1", "is not a field of a job; did you mean 'train.epochs'?"),
        ("resources.gpus=1", "is not a field of a job; write resources.any_of"),
        ("prices.T9=1", "--set: prices.T9: accelerator 'T9' is not known"),
        ("train.epochs=many", "--set: train.epochs: 'many' is not a number"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(setting: str, message: str) -> None:
    with pytest.raises(JobFileError, match=r"--set") as caught:
        loads(MINIMAL, settings=[setting], extra_rules=[accelerator_rules])
    assert message in str(caught.value)


def test_a_missing_job_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="no such file"):
        load(tmp_path / "job.yaml")


def test_missing_data_files_are_found_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    (tmp_path / "eval.csv").touch()
    with pytest.raises(JobFileError) as caught:
        load(path, extra_rules=[files_exist(tmp_path)])
    assert [(p.path, p.line) for p in caught.value.problems] == [("data.train.path", 5)]


def test_a_package_that_is_not_installed_is_found_before_anything_runs() -> None:
    text = MINIMAL.replace("bert-base-uncased", "package://no_such_package/model")
    with pytest.raises(JobFileError, match=r"'no_such_package' of .* is not installed"):
        loads(text, extra_rules=[files_exist(Path())])


def test_the_committed_schema_is_current() -> None:
    committed = (ROOT / "docs/job.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "run `make schema`"


def test_defaults_in_the_schema_are_written_as_in_job_files() -> None:
    sections = json.loads(schema_text())["$defs"]
    assert sections["AutoscalingSpec"]["properties"]["downscale_delay"]["default"] == "5m"
    assert sections["EvalSpec"]["properties"]["every"]["default"] == "1epoch"
    assert sections["ServeSpec"]["properties"]["accelerators"]["default"] == "cpu:1"


def test_every_field_is_documented() -> None:
    schema = json.loads(schema_text())
    objects = [schema, *schema["$defs"].values()]
    bare = [
        f"{o.get('title')}.{name}"
        for o in objects
        for name, field in o.get("properties", {}).items()
        if "description" not in field and "$ref" not in field  # then the section has it
    ]
    assert bare == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_jobs_load_and_match_the_schema(path: Path) -> None:
    spec = load(path)
    jsonschema.validate(spec.model_dump(mode="json", exclude_unset=True), json.loads(schema_text()))
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["name"] == spec.name


def test_words_of_other_trainers_lead_to_fields_that_exist() -> None:
    for hint in OTHER_TRAINERS.values():
        assert is_field(re.match(r"[a-z_.]+[a-z]", hint)[0])  # type: ignore[index]
