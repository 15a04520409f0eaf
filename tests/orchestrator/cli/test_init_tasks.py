"""`winnow init --data` knows the rows of each task, and says what it cannot decide."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import call as winnow

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NUMBERS = range(30)
TEXTS = [f"Ada went to Paris on day {n} and saw the house" for n in NUMBERS]
OTHERS = [f"On day {n} a visitor of the house came from Paris" for n in NUMBERS]
SHORT = [f"Day {n} in Paris" for n in NUMBERS]
TOKENS = [["Ada", "saw", "Paris", str(n)] for n in NUMBERS]
TAGS = [["B-person", "O", "B-place", "O"]] * 30
SPANS = [[{"start": 0, "end": 3, "label": "person"}, {"start": 12, "end": 17, "label": "place"}]]
ASKED = [[{"role": "user", "content": f"What is {n}?"}] for n in NUMBERS]
GOOD = [[*asked, {"role": "assistant", "content": "A number"}] for asked in ASKED]
BAD = [[*asked, {"role": "assistant", "content": "Who knows"}] for asked in ASKED]
SCORES = [n / 6 for n in NUMBERS]
CLASSES = ["good", "bad"] * 15
TOPICS = [["film"], ["book", "film"], []] * 10

Columns = dict[str, list[Any]]
Writer = Callable[[Columns], None]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes rows.jsonl."""

    def write(columns: Columns) -> None:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")

    return write


def written(folder: Path, *options: str) -> dict[str, Any]:
    """Writes the job of rows.jsonl, which is valid as it is, and returns it."""
    done = winnow(folder, "init", "--data", "rows.jsonl", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return valid_job(folder)


def valid_job(folder: Path) -> dict[str, Any]:
    valid = winnow(folder, "validate", "job.yaml")
    assert (valid.returncode, valid.stderr) == (0, "")
    job: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    return job


def refused(folder: Path, *options: str) -> str:
    done = winnow(folder, "init", "--data", "rows.jsonl", *options)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not (folder / "job.yaml").exists()
    return done.stderr


@pytest.mark.parametrize(
    ("rows", "task", "data"),
    [
        (
            {"tokens": TOKENS, "tags": TAGS},
            "token-classification",
            {"tokens": "tokens", "tags": "tags"},
        ),
        (
            {"id": [*NUMBERS], "words": TOKENS, "pos": TOKENS, "ner_tags": TAGS},
            "token-classification",
            {"tokens": "words", "tags": "ner_tags"},
        ),
        (
            {"text": TEXTS, "entities": SPANS * 30},
            "token-classification",
            {"text": "text", "spans": "entities"},
        ),
        (
            {"prompt": TEXTS, "chosen": OTHERS, "rejected": SHORT},
            "preference",
            {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {"chosen": GOOD, "rejected": BAD, "score": SCORES},
            "preference",
            {"chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {"prompt": SHORT, "messages": GOOD, "chosen": GOOD, "rejected": BAD},
            "preference",
            {"chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {"prompt": ASKED, "chosen": [c[1:] for c in GOOD], "rejected": [c[1:] for c in BAD]},
            "preference",
            {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {"anchor": TEXTS, "positive": OTHERS},
            "sentence-embedding",
            {"anchor": "anchor", "positive": "positive"},
        ),
        (
            {"query": TEXTS, "positive": OTHERS, "negative": SHORT},
            "sentence-embedding",
            {"anchor": "query", "positive": "positive", "negative": "negative"},
        ),
        (
            {"sentence1": TEXTS, "sentence2": OTHERS, "score": SCORES},
            "sentence-embedding",
            {"text": ["sentence1", "sentence2"], "score": "score", "highest_score": 5},
        ),
        (
            {"source": TEXTS, "target": OTHERS},
            "seq2seq",
            {"source": "source", "target": "target", "max_target_length": 128},
        ),
        (
            {"article": TEXTS, "summary": SHORT, "category": CLASSES},
            "seq2seq",
            {"source": "article", "target": "summary", "prefix": "summarize: "},
        ),
        (
            {"document": TEXTS, "summary": SHORT},
            "seq2seq",
            {"source": "document", "target": "summary", "prefix": "summarize: "},
        ),
        ({"id": [*NUMBERS], "text": TEXTS}, "causal-lm", {"text": "text"}),
        (
            {"text": TEXTS, "labels": TOPICS},
            "text-classification",
            {"text": "text", "label": "labels", "problem": "multi-label"},
        ),
        (
            {"text": TEXTS, "label": SCORES},
            "text-classification",
            {"text": "text", "label": "label", "problem": "regression"},
        ),
        (
            {"review": TEXTS, "stars": SCORES},
            "text-classification",
            {"text": "review", "label": "stars", "problem": "regression"},
        ),
    ],
)
def test_rows_of_each_kind_become_a_valid_job(
    tmp_path: Path, write: Writer, rows: Columns, task: str, data: dict[str, Any]
) -> None:
    write(rows)
    job = written(tmp_path)
    assert job["model"]["task"] == task
    named = {key: value for key, value in job["data"].items() if key not in ("train", "eval")}
    assert data.items() <= named.items()
    assert named.keys() - data.keys() <= {"max_length", "max_target_length"}


def test_a_conll_file_becomes_a_job_whose_evaluation_rows_have_known_tags(tmp_path: Path) -> None:
    names = ["person"] * 29 + ["place"]
    sentences = [f"Ada{n} _ B-{name}\nslept _ O\n" for n, name in zip(NUMBERS, names, strict=True)]
    (tmp_path / "names.conll").write_text("\n".join(sentences), encoding="utf-8")
    done = winnow(tmp_path, "init", "--data", "names.conll")
    assert "tags      tags: B-person (29), B-place (1), O (30)\n" in done.stdout
    assert "(not used: 2)" in done.stdout
    job = valid_job(tmp_path)
    assert (job["data"]["tokens"], job["data"]["tags"]) == ("tokens", "tags")
    assert '"B-place"' in (tmp_path / "names-train.jsonl").read_text(encoding="utf-8")


def test_a_conll_file_with_evaluation_rows_is_used_where_it_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.conll").write_text(f"{name} B-x\n\nc O\n", encoding="utf-8")
    done = winnow(tmp_path, "init", "--data", "a.conll", "--eval", "b.conll")
    assert done.returncode == 0
    assert valid_job(tmp_path)["data"]["eval"] == {"path": "b.conll"}


def test_scores_of_evaluation_rows_count_for_the_highest(tmp_path: Path, write: Writer) -> None:
    write({"a": TEXTS, "b": OTHERS, "score": [100.0] * 30})
    (tmp_path / "rows.jsonl").rename(tmp_path / "eval.jsonl")
    write({"a": TEXTS, "b": OTHERS, "score": SCORES})
    assert written(tmp_path, "--eval", "eval.jsonl")["data"]["highest_score"] == 100


def test_documents_are_for_masked_lm_too(tmp_path: Path, write: Writer) -> None:
    write({"text": TEXTS})
    done = winnow(tmp_path, "init", "first.yaml", "--data", "rows.jsonl")
    assert "also fits masked-lm: --task masked-lm\n" in done.stdout
    assert "task: masked-lm learns from the same" in (tmp_path / "first.yaml").read_text("utf-8")
    for path in tmp_path.glob("rows-*.jsonl"):
        path.unlink()
    assert written(tmp_path, "--task", "masked-lm")["model"]["task"] == "masked-lm"


AMBIGUOUS: list[tuple[Columns, str, tuple[str, ...], dict[str, Any]]] = [
    (
        {"tokens": TOKENS, "ner_tags": TAGS, "labels": TAGS},
        "has the columns ner_tags, labels for tags of token-classification; name one with --column",
        ("--column", "tags=ner_tags"),
        {"tags": "ner_tags"},
    ),
    (
        {"text": TEXTS, "spans_a": SPANS * 30, "spans_b": SPANS * 30},
        "has the columns spans_a, spans_b for spans of token-classification",
        ("--column", "spans=spans_b"),
        {"spans": "spans_b"},
    ),
    (
        {"text": TEXTS, "tokens": TOKENS, "labels": TAGS},
        "",
        ("--task", "text-classification"),
        {"label": "labels", "problem": "multi-label"},
    ),
    (
        {"query": TEXTS, "question": SHORT, "positive": OTHERS},
        "has the columns query, question for anchor of sentence-embedding",
        ("--column", "anchor=question"),
        {"anchor": "question"},
    ),
    (
        {"sentence1": TEXTS, "sentence2": OTHERS, "score": SCORES, "label": CLASSES},
        "sentence-embedding (sentence1, sentence2, score)",
        ("--task", "sentence-embedding"),
        {"score": "score"},
    ),
    (
        {"article": TEXTS, "document": OTHERS, "summary": SHORT},
        "has the columns article, document for source of seq2seq",
        ("--column", "source=document"),
        {"source": "document"},
    ),
    (
        {"source": TEXTS, "target": OTHERS, "anchor": TEXTS, "positive": OTHERS},
        "columns for sentence-embedding (anchor, positive) or seq2seq (source, target); choose",
        ("--task", "seq2seq"),
        {"source": "source"},
    ),
    (
        {"prompt": TEXTS, "question": SHORT, "chosen": OTHERS, "rejected": SHORT[::-1]},
        "",
        ("--column", "prompt=question"),
        {"prompt": "question"},
    ),
    (
        {"text": TEXTS, "url": SHORT},
        "it is not clear which are text and label",
        ("--task", "causal-lm"),
        {"text": "text"},
    ),
    (
        {"text": TEXTS, "genres": TOPICS, "places": TOPICS},
        "it is not clear which are text and label",
        ("--label", "genres"),
        {"label": "genres", "problem": "multi-label"},
    ),
    (
        {"text": TEXTS, "price": SCORES, "weight": SCORES},
        "it is not clear which are text and label",
        ("--label", "price"),
        {"label": "price", "problem": "regression"},
    ),
]


@pytest.mark.parametrize(("rows", "message", "options", "data"), AMBIGUOUS)
def test_ambiguous_columns_are_named_or_printed_and_options_choose(
    tmp_path: Path,
    write: Writer,
    rows: Columns,
    message: str,
    options: tuple[str, ...],
    data: dict[str, Any],
) -> None:
    write(rows)
    if message:
        assert message in refused(tmp_path)
    assert data.items() <= written(tmp_path, *options)["data"].items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "poetry"), "'poetry' is no task"),
        (("--task", "seq2seq"), "name them with --column source=COLUMN --column target=COLUMN"),
        (("--column", "source"), "--column source is not FIELD=COLUMN"),
        (("--column", "verse=text"), "'verse' is no field for a column of any task"),
        (("--column", "text=verse"), "has no column 'verse'"),
    ],
)
def test_wrong_choices_end_in_a_sentence(
    tmp_path: Path, write: Writer, options: tuple[str, ...], message: str
) -> None:
    write({"text": TEXTS, "label": CLASSES})
    assert message in refused(tmp_path, *options)


def test_other_tasks_that_fit_are_printed(tmp_path: Path, write: Writer) -> None:
    write({"article": TEXTS, "summary": SHORT, "category": CLASSES})
    done = winnow(tmp_path, "init", "--data", "rows.jsonl")
    assert done.stdout.startswith(
        "rows      30 for seq2seq\n"
        "source    article (not used: category)\n"
        "target    summary\n"
        "also fits text-classification: --task text-classification\n"
    )
