"""Rows come out of files as pandas reads them with `dtype=str`, or are refused with the line."""

import contextlib
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.training.data import readers, sources
from jobs.training.data.table import Table

TEXTS = st.text(
    st.one_of(
        st.sampled_from(",;\t|\"\n\r '0123456789.eE-+abcäß漢🙂NaN"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00\ufeff"),
    ),
    max_size=12,
).map(lambda text: re.sub(r"\r(?!\n)", "", text))  # pandas leaves a lone \r without quotes
FRAMES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(TEXTS, min_size=width, max_size=width), min_size=1, max_size=8)
)
ENDINGS = st.sampled_from(["", ".gz", ".zst"])
TURN = {"role": "user", "content": "x"}
few = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def columns_of(table: Table) -> dict[str, list[Any]]:
    return {name: table.values(name) for name in table.columns}


def frame_of(rows: list[list[str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[f"column {n}" for n in range(len(rows[0]))], dtype=str)


def read(path: Path) -> dict[str, list[Any]]:
    return columns_of(readers.read_file(path, path.name))


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path, content = folder / name, text.encode(encoding)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(content))
    elif name.endswith(".zst"):
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(content)
    return path


@contextlib.contextmanager
def refused_or_right(name: str, *, is_refusal_right: bool) -> Iterator[None]:
    """Lets a file be refused where its text can be read in two ways."""
    try:
        yield
    except DataError as error:
        if not is_refusal_right or name not in str(error):
            raise


@few
@given(
    FRAMES,
    st.sampled_from([",", ";", "|"]),
    ENDINGS,
    st.sampled_from(["utf-8", "utf-8-sig"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_csv_file_holds_what_pandas_reads(
    tmp_path: Path, rows: list[list[str]], separator: str, ending: str, mark: str, end: str
) -> None:
    text = frame_of(rows).to_csv(sep=separator, index=False, lineterminator=end)
    path = write(tmp_path, f"rows.csv{ending}", text, mark)
    pandas = pd.read_csv(
        io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, skip_blank_lines=False
    )
    # the header of one column does not show which separator its rows are written with
    is_unknown = len(rows[0]) == 1 and any(other in text for other in ",;\t|" if other != separator)
    with refused_or_right("rows.csv", is_refusal_right=is_unknown):
        assert read(path) == pandas.to_dict("list")


@few
@given(FRAMES, ENDINGS)
def test_a_tsv_file_holds_what_pandas_wrote(
    tmp_path: Path, rows: list[list[str]], ending: str
) -> None:
    text = frame_of(rows).to_csv(sep="\t", index=False)
    pandas = pd.read_csv(
        io.StringIO(text), sep="\t", dtype=str, keep_default_na=False, skip_blank_lines=False
    )
    # a field with a tab and a line break is like two torn rows
    is_torn = any("\t" in field and "\n" in field for row in rows for field in row)
    with refused_or_right("rows.tsv", is_refusal_right=is_torn):
        assert read(write(tmp_path, f"rows.tsv{ending}", text)) == pandas.to_dict("list")


@few
@given(FRAMES, ENDINGS, st.sampled_from(["lines", "records", "columns", "list"]))
def test_json_files_hold_what_was_written(
    tmp_path: Path, rows: list[list[str]], ending: str, shape: str
) -> None:
    frame = frame_of(rows)
    columns = frame.to_dict("list")
    written = {
        "lines": frame.to_json(orient="records", lines=True),
        "records": json.dumps(frame.to_dict("records"), indent=1),
        "columns": frame.to_json(),
        "list": json.dumps(columns),
    }
    name = f"rows.{'jsonl' if shape == 'lines' else 'json'}{ending}"
    assert read(write(tmp_path, name, written[shape])) == columns


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.csv",
            "t,l\n0123,01\n1.50,1\n,true\n",
            {"t": ["0123", "1.50", ""], "l": ["01", "1", "true"]},
        ),
        ("a.csv", "t,l\nNA,None\n", {"t": ["NA"], "l": ["None"]}),
        ("a.csv", 't;l\n"a, b";1\n', {"t": ["a, b"], "l": ["1"]}),
        ("a.csv", "t\n" + "1\n" * 300_001 + "other\n", {"t": ["1"] * 300_001 + ["other"]}),
        ("a.tsv", 't\tl\n"ab\t1\n', {"t": ['"ab'], "l": ["1"]}),
        ("a.tsv", 't\tl\n"ab\t1\t\ncd"\t2\n', {"t": ["ab\t1\t\ncd"], "l": ["2"]}),
        ("a.tsv", 't\tl\n"a ""b"""\t1\n', {"t": ['a "b"'], "l": ["1"]}),
        (
            "a.jsonl",
            '{"t": "2020-01-01", "l": 1.50}\n\n{"t": "x", "l": true}\n',
            {"t": ["2020-01-01", "x"], "l": ["1.50", "true"]},
        ),
        ("a.jsonl", '{"t": "x"}\n{"l": 1}\n', {"t": ["x", None], "l": [None, "1"]}),
        ("a.json", '{"data": [{"t": "x", "l": 3}]}', {"t": ["x"], "l": ["3"]}),
        ("a.json", '{"t": "x", "l": 3}', {"t": ["x"], "l": ["3"]}),
        ("a.json", '{"m": [{"role": "user", "content": "x"}]}', {"m": [[TURN]]}),
        ("a.jsonl", '{"t": "\\ud83d\\ude42"}\n', {"t": ["🙂"]}),
        ("a.jsonl", '{"m": [{"role": "user", "n": 1}]}\n', {"m": [[{"role": "user", "n": 1}]]}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_text_stays_as_it_is_written(
    name: str, text: str, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    assert read(write(tmp_path, name, text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "t,l\na,1\nb,2,3\n",
            "a.csv line 3 has 3 fields and the header 2: ['b', '2', '3']",
        ),
        ("a.csv", "t,l\na\n", "a.csv line 2 has 1 fields and the header 2"),
        ("a.csv", "t,l,t\na,1,b\n", "its header has column 't' twice; rename one of them"),
        ("a.csv", 't,l\n"a,1\n', "a.csv line 2: unexpected end of data"),
        ("a.csv", "", "a.csv has no rows"),
        ("a.csv", "t,l\n", "a.csv has no rows"),
        ("a.tsv", 't\tl\n"ab\t1\ncd"\t2\n', "is one field if quotes enclose fields, and the ends"),
        ("a.tsv", "t\tl\na\tb\tc\n", "a.tsv line 2 has 3 fields and the header 2"),
        ("a.jsonl", '{"t": 1}\n{"t": \n', "a.jsonl line 2: not valid JSON"),
        ("a.jsonl", '{"t": 1}\n[1]\n', "a.jsonl line 2: [1] is not an object of columns"),
        (
            "a.jsonl",
            '{"t": "x"}\n{"t": ["x"]}\n',
            "a.jsonl row 1: column 't' holds 'x', and values of another kind",
        ),
        ("a.jsonl", "", "a.jsonl has no rows"),
        (
            "a.jsonl",
            '{"t": 1}\n{"t": "\\ud83d"}\n',
            r"a.jsonl line 2: \ud83d is half of a character",
        ),
        ("a.jsonl", '{"t": [{"\\uDC00": 1}]}\n', r"a.jsonl line 1: \udc00 is half of a character"),
        ("a.json", '[{"t": "\\ud83d\\ud83d"}]', r"a.json: \ud83d is half of a character"),
        ("a.json", "[1]", "a.json row 1: 1 is not an object of columns"),
        ("a.json", '{"t": [1], "l": [1, 2]}', "neither a list of objects nor columns of equal"),
        ("a.json", "{", "a.json line 1: not valid JSON"),
        ("a.json", "[" * 100_000, "a.json cannot be read: "),
        ("a.jsonl", '{"t": ' + "1" * 5000 + "}", "a.jsonl cannot be read: "),
        ("a.parquet", "nothing", "a.parquet cannot be read: "),
        ("a.csv.gz", "", "a.csv.gz has no rows"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        read(write(tmp_path, name, text))
    assert message in str(caught.value)


def test_a_file_of_another_encoding_is_refused_with_the_line(tmp_path: Path) -> None:
    for name, text in (("a.csv", "t,l\na,1\né,2\n"), ("a.jsonl", '{"t": "a"}\n{"t": "é"}\n')):
        path = write(tmp_path, name, text, "latin-1")
        line = text.count("\n")
        with pytest.raises(DataError, match=f"{name} line {line} is not UTF-8"):
            read(path)
    for content in (b"no archive", gzip.compress(b"t\n" * 1000)[:-30] + b"x" * 30):
        (tmp_path / "b.csv.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"b\.csv\.gz cannot be read"):
            read(tmp_path / "b.csv.gz")


def test_parquet_and_saved_data_sets_keep_text_and_class_names(tmp_path: Path) -> None:
    values = {"t": [b"caf\xc3\xa9", b"b"], "l": [True, False], "n": [1, None]}
    pa.parquet.write_table(pa.table(values), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == {
        "t": ["café", "b"],
        "l": ["true", "false"],
        "n": [1, None],
    }
    pa.parquet.write_table(pa.table({"t": [b"\xff"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet cannot be read: Invalid UTF8"):
        read(tmp_path / "b.parquet")
    for kind in (pa.binary(2), pa.binary_view()):
        pa.parquet.write_table(pa.table({"t": pa.array([b"ab"], kind)}), tmp_path / "c.parquet")
        assert read(tmp_path / "c.parquet") == {"t": ["ab"]}

    kind = datasets.Features(
        {"t": datasets.Value("string"), "l": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = datasets.Dataset.from_dict({"t": ["x", "y"], "l": [1, 0]}, features=kind)
    rows.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"test": rows}).save_to_disk(str(tmp_path / "splits"))
    rows.to_parquet(str(tmp_path / "c.parquet"))
    for name, split in (("saved", "train"), ("splits", "test"), ("c.parquet", "train")):
        found = sources.read(SourceSpec(path=str(tmp_path / name), split=split))
        assert columns_of(found) == {"t": ["x", "y"], "l": [1, 0]}
        assert found.class_names == {"l": ("no", "yes")}
    with pytest.raises(DataError, match="has no split 'train'; it has test"):
        sources.read(SourceSpec(path=str(tmp_path / "splits")))
    with pytest.raises(DataError, match="nothing does not exist"):
        sources.read(SourceSpec(path=str(tmp_path / "nothing")))
    found_splits = [sources.splits(SourceSpec(path=str(tmp_path / n))) for n in ("splits", "saved")]
    assert found_splits == [("test",), ()]


def test_files_that_number_classes_differently_are_not_read_together(tmp_path: Path) -> None:
    for name, names in (("a", ["no", "yes"]), ("b", ["yes", "no"])):
        kind = datasets.Features({"l": datasets.ClassLabel(names=names)})
        rows = datasets.Dataset.from_dict({"l": [0, 1]}, features=kind)
        rows.to_parquet(str(tmp_path / f"{name}.parquet"))
    with pytest.raises(DataError, match=r"b\.parquet and .*a\.parquet name the classes"):
        sources.read(SourceSpec(path=str(tmp_path / "*.parquet")))


@pytest.mark.parametrize(
    "metadata",
    [
        "{",
        "null",
        '{"info": null}',
        '{"info": {"features": ["l"]}}',
        '{"info": {"features": {"l": "int64"}}}',
        '{"info": {"features": {"l": {"_type": "ClassLabel"}}}}',
        '{"info": {"features": {"l": {"_type": "ClassLabel", "names": null}}}}',
    ],
)
def test_parquet_with_metadata_of_another_program_is_read_without_class_names(
    metadata: str, tmp_path: Path
) -> None:
    rows = pa.table({"t": ["x", "y"], "l": [1, 0]})
    named = rows.replace_schema_metadata({"huggingface": metadata})
    pa.parquet.write_table(named, tmp_path / "a.parquet")
    found = readers.read_file(tmp_path / "a.parquet", "a.parquet")
    assert (found.values("t"), found.values("l")) == (["x", "y"], [1, 0])
    assert not found.class_names


def test_text_of_another_encoding_in_parquet_is_refused(tmp_path: Path) -> None:
    """Other writers check it no more than Arrow does."""
    torn = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00"), pa.py_buffer(b"\xff")],
    )
    pa.parquet.write_table(pa.table({"t": torn}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: .*UTF8"):
        read(tmp_path / "a.parquet")


def test_several_files_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "b.csv", "t\nlast\n")
    write(tmp_path, "a.csv", "t\nfirst\n")
    write(tmp_path, "c.csv.gz", "t\nzipped\n")
    write(tmp_path, "other.jsonl", '{"u": 1}\n')

    def reading(path: Any) -> list[Any]:
        return sources.read(SourceSpec(path=path)).values("t")

    assert reading(f"{tmp_path}/*.csv") == ["first", "last"]
    assert reading((f"{tmp_path}/b.csv", "~/c.csv.gz")) == ["last", "zipped"]
    with pytest.raises(DataError, match=r"other\.jsonl has the columns u, and .*b\.csv t"):
        reading((f"{tmp_path}/b.csv", f"{tmp_path}/other.jsonl"))
    with pytest.raises(DataError, match=r"x\*\.csv does not exist"):
        reading(f"{tmp_path}/x*.csv")
