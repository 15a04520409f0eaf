"""Reading rows: formats, pairs, labels, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.text_classification import rows as data
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.data import encoding, tokens
from jobs.training.model import base as base_model
from tests.builders import MINILM

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the datasets package


def spec_for(path: Path, text: str | tuple[str, str] = "text") -> ClassificationData:
    """A data section that reads `path` for both splits."""
    source = SourceSpec(path=str(path))
    return ClassificationData(train=source, eval=source, text=text, max_length=16)


def rows_of(path: Path, text: str | tuple[str, str] = "text") -> data.Rows:
    """All rows of a file."""
    spec = spec_for(path, text)
    return data.load_rows(spec.train, spec)


def test_csv_keeps_words_that_look_like_gaps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\nNA,1\n"None, really",0\n', encoding="utf-8")
    rows = rows_of(path)
    assert rows.texts == (("NA",), ("None, really",))
    assert rows.labels == ("1", "0")


def test_tsv_is_read_with_quoting_off(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open quote\tgood\nsays "so"\tbad\n', encoding="utf-8")
    assert rows_of(path).texts == (('"open quote',), ('says "so"',))


def test_jsonl_holds_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"a": "one", "b": "two", "label": n} for n in (1, 0, 1)]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    rows = rows_of(path, ("a", "b"))
    assert rows.texts[0] == ("one", "two")
    assert rows.label_names == ("0", "1")


def test_integer_labels_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,10\nb,9\nc,-1\n", encoding="utf-8")
    assert rows_of(path).label_names == ("-1", "9", "10")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence,label\na,1\n", "has no column 'text'; its columns are sentence, label"),
        ("text,label\n", "has no rows"),
        ("text,label\na,0.5\nb,1.5\n", "row 1: column 'label' holds '0.5'"),
        ("text,label\na,\n", "row 1: column 'label' holds"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv") as caught:
        rows_of(path)
    assert message in str(caught.value)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        rows_of(path)


def test_a_label_that_training_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,good\nb,odd\n", encoding="utf-8")
    with pytest.raises(DataError, match="'odd' is not among the training labels"):
        data.encode(
            rows_of(path),
            base_model.load_tokenizer(MINILM),
            max_length=8,
            label_names=("bad", "good"),
        )


def test_batches_are_padded_to_the_width_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nshort,0\na much longer text,1\n", encoding="utf-8")
    tokenizer = base_model.load_tokenizer(MINILM)
    table = data.encode(rows_of(path), tokenizer, max_length=16, label_names=("0", "1"))
    encoded = encoding.token_set(table, tokenizer)
    batch = tokens.TokenStore(encoded, torch.device("cpu")).gather(torch.tensor([0, 1]), 8)
    assert encoded.lengths.tolist() == [3, 6]
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"][0, 3:].tolist() == [0] * 5
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 6]
    assert batch["labels"].tolist() == [0, 1]
