"""Job files of token classification that mix things up are refused with line and column."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.errors import JobFileError
from jobs.loader import load
from jobs.loader.rows import rows_suit_the_job


def problems(folder: Path, base: str, data: dict[str, Any], **sections: Any) -> list[str]:
    """Errors of a job file, without its path."""
    sources = {split: {"path": f"{split}.jsonl"} for split in ("train", "eval")}
    job = {
        "version": 1,
        "name": "names",
        "model": {"base": base, "task": "token-classification"},
        "data": {**sources, **data},
        **sections,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    try:
        load(path, extra_rules=(rows_suit_the_job(folder),))
    except JobFileError as error:
        return [str(problem).removeprefix(f"{path}:") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("data", "sections", "reason"),
    [
        ({"label": "tags"}, {}, "data.label"),
        ({"tokens": "tags"}, {}, "column 'tags' is already the tokens'"),
        ({"text": "tokens"}, {}, "is missing; `text` needs it"),
        ({"tokens": "words"}, {}, "train.jsonl has no column 'words'"),
        ({"text": "a", "spans": "b", "tags": "c"}, {}, "cannot be named beside text"),
        ({}, {"train": {"eval": {"metrics": ["mcc"]}}}, "it has f1, precision, recall"),
        ({}, {"serve": {"route": "/n", "grpc": 1}}, "serve.grpc"),
        (
            {},
            {"serve": {"route": "/n", "rollout": {"gate": ["accuracy>=0"]}}},
            "is not judged for token-classification; it has slo, latency, f1, agreement",
        ),
    ],
)
def test_job_files_that_mix_things_up_are_refused(
    tmp_path: Path,
    tiny_model: str,
    data: dict[str, Any],
    sections: dict[str, Any],
    reason: str,
) -> None:
    line = json.dumps({"tokens": ["Ada"], "tags": ["B-person"]})
    for split in ("train", "eval"):
        (tmp_path / f"{split}.jsonl").write_text(line, encoding="utf-8")
    assert problems(tmp_path, tiny_model, {}) == []
    found = problems(tmp_path, tiny_model, data, **sections)
    assert any(reason in problem for problem in found), found
    assert all(re.match(r"[0-9]+:[0-9]+: ", problem) for problem in found), found


def test_rows_that_do_not_fit_are_found_before_training(tmp_path: Path, tiny_model: str) -> None:
    def found(train: Any, other: Any) -> str:
        for split, line in (("train", train), ("eval", other)):
            (tmp_path / f"{split}.jsonl").write_text(json.dumps(line), encoding="utf-8")
        return " ".join(problems(tmp_path, tiny_model, {}))

    good = {"tokens": ["Ada"], "tags": ["B-person"]}
    assert found(good, good) == ""
    assert "row 1 has 1 tokens and 2 tags" in found(good, {**good, "tags": ["O", "O"]})
    assert "has the entity 'place', which is not among" in found(
        good, {**good, "tags": ["B-place"]}
    )
    assert "has no entity to learn" in found({**good, "tags": ["O"]}, {**good, "tags": ["O"]})
    assert "'I-person', follows" not in found({**good, "tags": ["I-person"]}, good)  # IOB1
    assert "not a list of tokens" in found({**good, "tokens": "Ada"}, good)
