"""Tasks of lm-evaluation-harness over local rows: one with choices, one that writes text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

CHOICES = [" Yes, it is.", " No, it is not."]
MODEL = """\
dataset_path: json
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
"""


def write(folder: Path, words: Mapping[str, str]) -> Path:
    """Write the tasks `film_choice` and `film_text` and their rows; returns their folder.

    `words` are the right answers of film_text by adjective.
    """
    folder.mkdir()
    asked = [f"Is a {word} film good?" for word in words]
    choices = [{"question": each, "answer": n % 2} for n, each in enumerate(asked)]
    texts = [
        {"question": each, "answer": right}
        for each, right in zip(asked, words.values(), strict=True)
    ]
    _rows(folder / "choices.jsonl", choices)
    _rows(folder / "texts.jsonl", texts)
    _task(
        folder / "choice.yaml",
        task="film_choice",
        dataset_kwargs={"data_files": {"test": "choices.jsonl"}},
        output_type="multiple_choice",
        doc_to_choice=CHOICES,
        metric_list=[_mean("acc"), _mean("acc_norm")],
    )
    _task(
        folder / "text.yaml",
        task="film_text",
        dataset_kwargs={"data_files": {"test": "texts.jsonl"}},
        output_type="generate_until",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 6, "do_sample": False},
        filter_list=[
            {"name": "whole", "filter": [{"function": "take_first"}]},
            {"name": "letters", "filter": [_letters(), {"function": "take_first"}]},
        ],
        metric_list=[_mean("exact_match")],
    )
    return folder


def _letters() -> dict[str, str]:
    return {"function": "regex", "regex_pattern": "([a-z]+)"}


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def _task(file: Path, **fields: Any) -> None:
    file.write_text(MODEL + yaml.safe_dump(fields), encoding="utf-8")


def _rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
