"""Job files that extend others, and the variables in them."""

from pathlib import Path

import pytest
import yaml

from jobs.errors import JobFileError
from jobs.loader import load, loads
from jobs.loader.variables import Variables
from jobs.spec import JobSpec
from orchestrator.records import runs
from tests.builders import MINIMAL


def write(folder: Path, **files: str) -> Path:
    """Files by name without ending, of which `job` is the one to load."""
    for name, text in files.items():
        path = folder / ("." + name if name == "env" else f"{name}.yaml")
        path.write_text(text, encoding="utf-8")
    return folder / "job.yaml"


def problems(path: Path, *settings: str) -> list[str]:
    """Everything that is wrong with a job file, with names instead of paths."""
    with pytest.raises(JobFileError) as caught:
        load(path, settings=settings)
    return [str(each).replace(f"{path.parent}/", "") for each in caught.value.problems]


def test_the_extending_file_wins_mappings_merge_and_lists_replace(tmp_path: Path) -> None:
    base = (
        "train: {epochs: 2, optimizer: {lr: 1e-4, weight_decay: 0.1}}\n"
        "resources: {any_of: [{accelerators: T4:1}, {accelerators: L40S:1}]}\n"
        "budget: {max_cost: 3}\n"
    )
    own = (
        "extends: base.yaml\n"
        "name: mine\n"
        "train: {optimizer: {lr: 3e-4}}\n"
        "resources: {any_of: [{accelerators: cpu:1}]}\n"
        "budget: null\n"
    )
    spec = load(write(tmp_path, base=MINIMAL + base, job=own))
    assert spec.name == "mine"
    assert spec.model.base == "bert-base-uncased"
    assert (spec.train.epochs, spec.train.optimizer.lr) == (2, 3e-4)
    assert spec.train.optimizer.weight_decay == 0.1
    assert spec.resources is not None
    assert [str(place.accelerators) for _, place in spec.resources.placements] == ["cpu:1"]
    assert spec.budget is None


def test_files_extend_in_a_chain_each_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "lab.yaml").write_text(MINIMAL + "seed: 1\n", encoding="utf-8")
    (tmp_path / "team" / "base.yaml").write_text("extends: ../lab.yaml\nseed: 2\n")
    spec = load(write(tmp_path, job="extends: team/base.yaml\nname: mine\n"))
    assert (spec.name, spec.seed, spec.data.train.path) == ("mine", 2, "train.csv")


def test_a_job_is_the_same_however_it_is_split(tmp_path: Path) -> None:
    whole = loads(MINIMAL + "seed: 3\ntrain: {epochs: 2}\n")
    path = write(tmp_path, base=MINIMAL + "train: {epochs: 1}\n", env="SEED=3")
    path.write_text("extends: base.yaml\nseed: ${SEED}\ntrain: {epochs: 2}\n", encoding="utf-8")
    assert runs.digest(load(path)) == runs.digest(whole)


def test_an_error_stands_in_the_file_that_sets_the_value(tmp_path: Path) -> None:
    base = MINIMAL + "train: {epochs: -1}\nseed: x\n"
    path = write(tmp_path, base=base, job="extends: base.yaml\ntrain: {epoch: 2}\nseed: ${S}\n")
    (tmp_path / ".env").write_text("\nS=none\n", encoding="utf-8")
    assert problems(path, "budget.max_cost=-1") == [
        "--set: budget.max_cost: -1 must be greater than 0.0",
        "job.yaml:2:9: train.epoch: unknown key; did you mean 'epochs'?",
        "job.yaml:3:7: seed: 'none' is not a whole number (S from .env:2)",
        "base.yaml:8:17: train.epochs: -1 must be greater than 0.0",
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"job": "extends: a.yaml"}, "job.yaml:1:10: extends: a.yaml does not exist; the path is"),
        ({"job": "extends: [a]"}, "job.yaml:1:10: extends: ['a'] is not the path of a job file"),
        ({"job": "extends: job.yaml"}, "extends: files extend each other: job.yaml -> job.yaml"),
        (
            {"job": "extends: a.yaml", "a": "extends: b.yaml", "b": "seed: 1\nextends: a.yaml"},
            "b.yaml:2:10: extends: files extend each other: job.yaml -> a.yaml -> b.yaml -> a.yaml",
        ),
        ({"job": "extends: a.yaml", "a": "seed: [1"}, "a.yaml:1:"),
        ({"job": "extends: a.yaml", "a": ""}, "a.yaml:1:1: the file is empty"),
    ],
)
def test_what_cannot_be_extended_is_told(
    files: dict[str, str], expected: str, tmp_path: Path
) -> None:
    (problem,) = problems(write(tmp_path, **files))
    assert expected in problem


def test_variables_become_what_their_field_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_NAME", "42")
    monkeypatch.setenv("RATE", "3e-4")
    monkeypatch.delenv("DAY", raising=False)
    text = MINIMAL.replace("name: reviews", "name: ${JOB_NAME}") + (
        "train: {optimizer: {lr: '${RATE}'}, compile: \"${COMPILE:-true}\"}\n"
        "storage: ./runs-${DAY:-today}/$${x}\n"
    )
    spec = load(write(tmp_path, job=text.replace("/$${x}", "")))
    assert (spec.name, spec.train.optimizer.lr, spec.train.compile) == ("42", 3e-4, True)
    assert spec.storage == "./runs-today"
    (problem,) = problems(write(tmp_path, job=text))
    assert "./runs-today/${x} holds the environment variable ${x}" in problem


def test_the_environment_wins_over_the_file_and_both_over_the_default(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A='from file'\nB=b # a remark\nEMPTY=\n", encoding="utf-8")
    variables = Variables(tmp_path, {"A": "from process"})
    found = variables.expand("${A:-x} ${B:-x} ${C:-x y} ${EMPTY:-full} ${EMPTY}$${A}")
    assert found.text == "from process b x y full ${A}"
    assert found.origins[:2] == ("A from the environment", f"B from {tmp_path}/.env:2")
    assert found.mistakes == []


def test_every_variable_that_has_no_value_is_told_at_its_place(tmp_path: Path) -> None:
    own = (
        'extends: base.yaml\nname: "a-${NO_1}"\ntrain:\n  epochs: ${NO_2}\nstorage: a/${NO-3}/${B\n'
    )
    path = write(tmp_path, base=MINIMAL + "seed: ${NO_4}\n", job=own)
    found = problems(path)
    assert [each.partition(": ")[0] for each in found] == [
        *("job.yaml:2:10", "job.yaml:4:11", "job.yaml:5:12", "job.yaml:5:20", "base.yaml:8:7")
    ]
    assert "name: the variable NO_1 is not set; set it in the environment or in .env" in found[0]
    assert "storage: ${NO-3} is no variable; write ${NAME}, ${NAME:-default}" in found[2]


def test_a_secret_is_no_value_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hidden-word")
    (problem,) = problems(write(tmp_path, job=MINIMAL + "storage: ./${API_TOKEN}\n"))
    assert "${API_TOKEN} is a secret by its name" in problem
    assert "hidden-word" not in problem


def test_a_line_of_the_file_of_variables_that_is_none_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, job=MINIMAL + "seed: ${SEED}\n", env="A=1\n=b\n")
    assert problems(path) == [".env:2:1: is not NAME=value"]


def test_a_job_without_variables_needs_no_file_of_them(tmp_path: Path) -> None:
    assert load(write(tmp_path, job=MINIMAL, env="=b\n")).name == "reviews"


def test_a_job_that_is_written_out_is_read_back_as_it_was(tmp_path: Path) -> None:
    text = MINIMAL.replace("text: text", "text: '$${column}'")
    spec = load(write(tmp_path, job=text))
    assert spec.data.text_columns == ("${column}",)
    assert load(write(tmp_path, job=runs.to_job_file(spec))) == spec
    assert JobSpec.model_validate(yaml.safe_load(runs.to_yaml(spec))) == spec
