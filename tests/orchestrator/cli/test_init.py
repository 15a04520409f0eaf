"""`winnow init --data` writes a job that loads, for rows as people have them."""

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from tests.commands import Done
from tests.commands import call as winnow

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LABELS = ["good", "bad"] * 15
TEXTS = [f'He said "well,\nfilm {n}" at the end, and we agreed' for n in range(30)]
OTHERS = [f"Another remark on film {n} and how it ended" for n in range(30)]
CHATS = [
    [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": "A number"}]
    for n in range(30)
]


def csv_text(header: list[str], *columns: list[Any], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([header, *zip(*columns, strict=True)])
    return text.getvalue()


def json_lines(**columns: list[Any]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def saved(**columns: list[Any]) -> datasets.Dataset:
    """Rows whose label is a ClassLabel."""
    rows = datasets.Dataset.from_dict(columns)
    return rows.cast_column("label", datasets.ClassLabel(names=["bad", "good"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rows in many formats."""
    reviews = csv_text(["id", "text", "label"], list(range(30)), TEXTS, LABELS)
    (tmp_path / "reviews.csv").write_text(reviews, encoding="utf-8")
    (tmp_path / "zipped.csv.gz").write_bytes(gzip.compress(reviews.encode()))
    (tmp_path / "rows").mkdir()
    for part in ("a", "b"):
        (tmp_path / f"rows/{part}.csv").write_text(reviews, encoding="utf-8")
    tabs = csv_text(["sentence", "stars"], OTHERS, [1, 2, 3] * 10, delimiter="\t")
    (tmp_path / "Tabs 1.tsv").write_text(tabs, encoding="utf-8")
    pairs = json_lines(question1=OTHERS, question2=TEXTS, is_duplicate=[True, False] * 15)
    (tmp_path / "pairs.jsonl").write_text(pairs, encoding="utf-8")
    (tmp_path / "chats.jsonl").write_text(json_lines(messages=CHATS), encoding="utf-8")
    rows = saved(text=TEXTS, label=[n % 2 for n in range(30)])
    rows.to_parquet(str(tmp_path / "classes.parquet"))
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=rows, validation=rows).save_to_disk(str(tmp_path / "two"))
    return tmp_path


def data_of(folder: Path, job: str = "job.yaml") -> dict[str, Any]:
    """The data section of a job file."""
    values = yaml.safe_load((folder / job).read_text(encoding="utf-8"))
    assert "resources" not in values
    data: dict[str, Any] = values["data"]
    return data


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("reviews.csv", {"text": "text", "label": "label"}),
        ("zipped.csv.gz", {"text": "text", "label": "label"}),
        ("rows/*.csv", {"text": "text", "label": "label"}),
        ("Tabs 1.tsv", {"text": "sentence", "label": "stars"}),
        ("pairs.jsonl", {"text": ["question1", "question2"], "label": "is_duplicate"}),
        ("classes.parquet", {"text": "text", "label": "label"}),
        ("one", {"text": "text", "label": "label"}),
        ("two", {"text": "text", "label": "label"}),
        ("chats.jsonl", {"messages": "messages"}),
    ],
)
def test_the_job_for_a_file_loads(folder: Path, name: str, columns: dict[str, Any]) -> None:
    done = winnow(folder, "init", "--data", name)
    assert (done.returncode, done.stderr) == (0, "")
    data = data_of(folder)
    assert {key: data[key] for key in columns} == columns
    valid = winnow(folder, "validate", "job.yaml")
    assert (valid.returncode, valid.stderr) == (0, "")


def test_rows_are_split_by_label_and_stay_as_they_are_written(folder: Path) -> None:
    winnow(folder, "init", "--data", "reviews.csv")
    train, held_back = (rows_in(folder / f"reviews-{part}.jsonl") for part in ("train", "eval"))
    assert Counter(row["label"] for row in held_back) == {"good": 2, "bad": 2}
    rows = sorted([*train, *held_back], key=lambda row: int(row["id"]))
    assert [(row["text"], row["label"]) for row in rows] == list(zip(TEXTS, LABELS, strict=True))


def test_class_names_stand_in_for_their_numbers(folder: Path) -> None:
    for name in ("classes.parquet", "one"):
        done = winnow(folder, "init", f"{name}.yaml", "--data", name, "--json")
        assert json.loads(done.stdout)["labels"] == {"bad": 15, "good": 15}


def test_what_was_found_is_printed(folder: Path) -> None:
    assert winnow(folder, "init", "--data", "reviews.csv").stdout == (
        "rows      30 for text-classification\n"
        "text      text (not used: id)\n"
        "label     label: bad (15), good (15)\n"
        "train     26 rows: reviews-train.jsonl\n"
        "eval      4 rows: reviews-eval.jsonl\n"
        "wrote     reviews-train.jsonl, reviews-eval.jsonl, job.yaml; next:\n"
        "  winnow validate job.yaml\n"
        "  winnow run job.yaml\n"
    )


def test_the_same_is_printed_as_values(folder: Path) -> None:
    found = json.loads(winnow(folder, "init", "--data", "reviews.csv", "--json").stdout)
    assert found == {
        "written": "job.yaml",
        "files": ["reviews-train.jsonl", "reviews-eval.jsonl"],
        "task": "text-classification",
        "rows": 30,
        "columns": ["text"],
        "label": "label",
        "fields": {"text": ["text"], "label": ["label"]},
        "also_fits": [],
        "left_out": ["id"],
        "labels": {"bad": 15, "good": 15},
        "train": {"path": "reviews-train.jsonl", "rows": 26, "split": None},
        "eval": {"path": "reviews-eval.jsonl", "rows": 4, "split": None},
        "next": ["winnow validate job.yaml", "winnow run job.yaml"],
    }


def test_evaluation_rows_that_are_there_are_used(folder: Path) -> None:
    winnow(folder, "init", "two.yaml", "--data", "two")
    assert data_of(folder, "two.yaml")["eval"] == {"path": "./two", "split": "validation"}
    winnow(folder, "init", "--data", "reviews.csv", "--eval", "zipped.csv.gz")
    data = data_of(folder)
    assert (data["train"]["path"], data["eval"]["path"]) == ("reviews.csv", "zipped.csv.gz")
    assert not list(folder.glob("*-eval.jsonl"))


@pytest.mark.parametrize("name", ["reviews.csv", "rows/*.csv", "one", "{folder}/reviews.csv"])
def test_a_job_in_another_folder_finds_its_rows(folder: Path, name: str) -> None:
    (folder / "jobs").mkdir()
    data, held_back = name.format(folder=folder), "zipped.csv.gz"
    for words in (("a.yaml", "--data", data), ("b.yaml", "--data", data, "--eval", held_back)):
        done = winnow(folder, "init", f"jobs/{words[0]}", *words[1:])
        assert done.returncode == 0, done.stderr
        assert winnow(folder, "validate", f"jobs/{words[0]}").returncode == 0
    assert not Path(data_of(folder, "jobs/a.yaml")["train"]["path"]).is_absolute()


def test_named_columns_win(folder: Path) -> None:
    words = ("--data", "pairs.jsonl", "--text", "question2", "--label", "is_duplicate")
    assert winnow(folder, "init", *words).returncode == 0
    assert data_of(folder)["text"] == "question2"


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_refusal(folder: Path, done: Done, message: str) -> None:
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


MANY = csv_text(["text", "label"], TEXTS * 4, [f"label {n}" for n in range(120)])
EMPTY = csv_text(["text", "label"], TEXTS, ["good", "bad", ""] * 10)
LONER = csv_text(["text", "label"], TEXTS, [f"label {n}" for n in range(30)])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("review\na\nb\n", (), "a.csv has only the column 'review'"),
        ("text,label\na,1\n", (), "a.csv has 1 row"),
        ("text,label\na,1\nb,1\n", (), "a.csv has only the label '1'; two are needed"),
        (MANY, (), "a.csv has 120 different labels in 120 rows, which are no classes"),
        (LONER, (), "a.csv has no two rows of the same label with different texts"),
        (EMPTY, (), "a.csv row 3: column 'label' holds ''; a label is an integer or a string"),
        ("one,two\na,b\nc,d\n", (), "--text COLUMN (twice for pairs) and --label COLUMN"),
        ("text,label\na\n", (), "a.csv line 2 has 1 fields and the header 2"),
        ("", (), "a.csv has no rows"),
        ("text,label\na,1\nb,2\n", ("--label", "none"), "a.csv has no column 'none'; its"),
        ("text,label\na,1\nb,2\n", ("--text", "label", "--label", "label"), "is already a text"),
        (
            "text,label\na,1\nb,2\n",
            ("--text", "a", "--text", "b", "--text", "c"),
            "names 3 columns",
        ),
        ("text,label\na,1\nb,2\n", ("--eval", "a.csv"), "--eval a.csv has rows of --data"),
        ("text,label\na,1\nb,2\n", ("--eval", "b.csv"), "b.csv has the label 'new' (1 rows)"),
        ("text,label\na,1\nb,2\n", ("--eval", "c.csv"), "c.csv does not exist"),
    ],
)
def test_rows_that_fit_no_job_end_in_a_sentence(
    tmp_path: Path, text: str, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    (tmp_path / "b.csv").write_text("text,label\nx,new\ny,1\n", encoding="utf-8")
    before = listing(tmp_path)
    check_refusal(tmp_path, winnow(tmp_path, "init", "--data", "a.csv", *options), message)
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "none.csv"), "none.csv does not exist"),
        (("--data", "~nobody-here/a.csv"), "~nobody-here/a.csv does not exist"),
        (("--data", "none"), "none is neither a folder here nor a file that ends in .csv"),
        (("--data", "home.xlsx"), "home.xlsx is no hub id and no file that ends in .csv"),
        (("--data", "https://a.com/b.csv"), "https://a.com/b.csv is a URL; download the file"),
        (("--data", "."), "is neither a `Dataset` directory nor a `DatasetDict`"),
        (("--label", "x"), "--eval, --text, --label, --column and --task say how"),
        (("none/job.yaml", "--data", "a.csv"), "cannot be written: No such file or directory"),
        (("kept.yaml", "--data", "a.csv"), "kept.yaml exists already"),
        (("--data", "kept.csv"), "kept-eval.jsonl exists already"),
    ],
)
def test_files_that_cannot_be_read_or_written_end_in_a_sentence(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    for name in ("a.csv", "kept.csv"):
        (tmp_path / name).write_text(csv_text(["text", "label"], TEXTS, LABELS), encoding="utf-8")
    for name in ("kept.yaml", "kept-eval.jsonl"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    before = listing(tmp_path)
    check_refusal(tmp_path, winnow(tmp_path, "init", *options), message)
    assert listing(tmp_path) == before
