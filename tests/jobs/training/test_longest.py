"""The longest training row, as planning sees it before anything is tokenised."""

import csv
import json
from pathlib import Path

import pytest

from jobs.training.data.longest_row import longest_row
from tests.builders import MINILM, job

WORDS = "a truly fine film"


def write(folder: Path, suffix: str) -> str:
    """Three rows, of which the second has 40 words more than the others."""
    texts = [WORDS, WORDS + " indeed" * 40, WORDS]
    path = folder / f"train{suffix}"
    rows = [{"text": text, "label": str(n % 2)} for n, text in enumerate(texts)]
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(
                handle, ["text", "label"], delimiter="\t" if suffix == ".tsv" else ","
            )
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_the_model_s_own_tokenizer_counts_the_longest_row(suffix: str, tmp_path: Path) -> None:
    spec = job(model__base=MINILM, data__train={"path": write(tmp_path, suffix)})
    assert longest_row(spec) == 4 + 40 + 2


def test_without_the_tokenizer_characters_are_counted(tmp_path: Path) -> None:
    spec = job(data__train={"path": write(tmp_path, ".csv")})
    assert longest_row(spec) == pytest.approx((17 + 7 * 40) / 4 + 2, abs=1)


def test_a_tokenizer_that_cannot_be_read_leaves_the_length_unknown(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for content in ("{", "[]", ""):
        (tmp_path / "base/tokenizer.json").write_text(content, encoding="utf-8")
        path = write(tmp_path, ".csv")
        spec = job(model__base=str(tmp_path / "base"), data__train={"path": path})
        assert longest_row(spec) is None


@pytest.mark.parametrize("path", ["missing.csv", "s3://bucket/train.csv"])
def test_rows_that_are_not_here_are_of_unknown_length(path: str, tmp_path: Path) -> None:
    found = path if "://" in path else str(tmp_path / path)
    assert longest_row(job(data__train={"path": found})) is None
