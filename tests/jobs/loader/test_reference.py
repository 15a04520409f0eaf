"""The reference of the job file: every section by its path, each with an example that is a job."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.loader import loads, overrides
from jobs.loader.reference import Section, in_order, kind_of, reference_text, sections
from jobs.loader.reference_examples import EXAMPLES
from jobs.loader.schema import job_schema
from jobs.loader.source import parse
from jobs.spec import task_registry
from jobs.spec.data import DataSpec
from tests.builders import MINIMAL

PAGE = Path(__file__).parents[3] / "docs/reference/job-file.md"
FOUND = in_order(sections(job_schema()))
CASES = [(path, text) for path, texts in EXAMPLES.items() for text in texts]


def at(values: Any, path: str) -> list[Any]:
    """What stands at a section's path, in which `[]` is any item of a list and NAME any key."""
    found = [values]
    for part in filter(None, path.replace("[]", ".[]").split(".")):
        lists = [list(value) if part == "[]" else None for value in found]
        if part in ("[]", "NAME"):
            found = [
                item
                for value, items in zip(found, lists, strict=True)
                for item in (items if items is not None else value.values())
            ]
        else:
            found = [value[part] for value in found if part in value]
    return found


def test_the_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_text(), "run `make schema`"


def test_every_section_has_an_example_and_every_example_a_section() -> None:
    assert {"", *(section.paths[0] for section in FOUND)} == set(EXAMPLES)


@pytest.mark.parametrize(("path", "text"), CASES, ids=lambda value: value[:40])
def test_an_example_is_a_job_that_uses_its_section(path: str, text: str) -> None:
    values = parse(text, path).values
    whole = {**parse(MINIMAL, "").values, **values}
    loads(yaml.safe_dump(whole, sort_keys=False), path)
    paths = next((section.paths for section in FOUND if section.paths[0] == path), [path])
    assert any(value for each in paths for value in at(values, each))


def test_every_field_that_can_be_searched_is_named() -> None:
    described = job_schema()["$defs"]["SweepSpec"]["properties"]["search_space"]["description"]
    assert [name for name in overrides.SEARCHABLE if f"`{name}`" not in described] == []


def test_every_task_and_variant_has_a_heading_with_an_example_and_its_own_columns() -> None:
    text = reference_text()
    shown = {kind_of(example).name for example in EXAMPLES["data"]}
    for kind in task_registry.kinds():
        heading = f"### data: {kind.name.replace('/', ', ')}\n"
        assert text.count(heading) == 1
        assert kind.name in shown
        part = text.partition(heading)[2].partition("\n### ")[0]
        fields = {line.split("`")[1] for line in part.splitlines() if line.startswith("| `")}
        own = kind.data.model_fields.keys() - DataSpec.model_fields.keys()
        assert fields == own - set(kind.ignores)
        assert set(kind.ignores) < own


def test_sections_stand_in_the_order_of_the_file() -> None:
    tops = [section.paths[0].split(".")[0].removesuffix("[]") for section in FOUND]
    fields = [name for name in job_schema()["properties"] if name in tops]
    assert list(dict.fromkeys(tops)) == fields
    assert [section.paths[0] for section in FOUND if section.paths[0].startswith("train")] == [
        "train",
        "train.optimizer",
        "train.lr_schedule",
        "train.eval",
        "train.eval.harness",
        "train.early_stopping",
        "train.checkpoint",
        "train.retry",
    ]


def test_a_section_that_stands_at_two_paths_is_described_once() -> None:
    shared = Section(["resources.any_of[]", "resources.ordered[]"])
    assert reference_text().count(f"[mapping](#{shared.anchor})") == 2
    assert reference_text().count("### `resources.any_of[]`, `resources.ordered[]`") == 1


def test_types_have_their_bounds_and_notations() -> None:
    text = reference_text()
    assert "| `trials` | integer, at least 1, at most 10,000 | `8` |" in text
    assert '| `hold` | string, such as `90s` or `2h` | `"2m"` |' in text
    assert "| `optimizer` | [mapping](#trainoptimizer) | – | How weights are updated. |" in text
    assert "| `loguniform` | list of number | required |" in text
