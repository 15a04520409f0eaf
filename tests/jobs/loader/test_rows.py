"""Local files are read before anything is spent: columns, texts, labels and lengths."""

from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from jobs.errors import JobFileError
from jobs.loader import loads
from jobs.loader.rows import rows_suit_the_job

JOB = """\
version: 1
name: reviews
model: {base: base}
data:
  train: {path: train.csv}
  eval: {path: eval.csv}
  text: text
  label: label
  max_length: 64
"""
ANSWERS = """\
version: 1
name: answers
model: {base: gpt2, task: causal-lm}
data:
  train: {path: train.jsonl}
  eval: {path: eval.jsonl}
  prompt: p
  response: r
"""
TRAIN = "text,label\ngood,yes\nbad,no\nfine,yes\n"
EVAL = "text,label\nwell,yes\nill,no\n"
Problems = Callable[..., list[str]]


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """What is wrong with a job whose files hold these texts."""

    def found(
        job: str = JOB, train: str = TRAIN, held_back: str = EVAL, config: str = ""
    ) -> list[str]:
        (tmp_path / "train.csv").write_text(train, encoding="utf-8")
        (tmp_path / "eval.csv").write_text(held_back, encoding="utf-8")
        (tmp_path / "base").mkdir(exist_ok=True)
        if config:
            (tmp_path / "base/config.json").write_text(config, encoding="utf-8")
        try:
            loads(job, extra_rules=[rows_suit_the_job(tmp_path)])
        except JobFileError as error:
            return [str(problem) for problem in error.problems]
        return []

    return found


def test_a_job_whose_files_suit_it_has_no_problem(problems: Problems) -> None:
    assert problems() == []
    assert problems(config='{"model_type": "bert", "max_position_embeddings": 64}') == []


ROBERTA = '{"model_type": "roberta", "max_position_embeddings": 65, "pad_token_id": 1}'
MANY = "text,label\n" + "".join(f"a,{number}\n" for number in range(200))


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("train", "words,label\na,1\n", "job.yaml:7:9: data.text: train.csv has no column 'text'"),
        ("train", "text,class\na,1\n", "job.yaml:8:10: data.label: train.csv has no column"),
        (
            "train",
            "text,label\na,1\nb,\n",
            "8:10: data.label: train.csv row 2: column 'label' holds",
        ),
        (
            "held_back",
            "text,label\na,0.5\n",
            "eval.csv row 1: column 'label' holds '0.5'; a label is",
        ),
        ("train", "text,label\na,1\nb,1\n", "train.csv has only the label '1'; two are needed"),
        ("train", "text,label\na,1\nb,\n", "data.label: train.csv row 2: column 'label' holds ''"),
        ("train", 'text,label\na,"1\n2"\nb,3\n', "is not among the training labels (1\\n2, 3)"),
        ("held_back", "text,label\nb,maybe\n", "eval.csv has the label 'maybe' (1 rows), which"),
        ("train", MANY, "train.csv has 200 different labels in 200 rows, which are no classes"),
        ("train", "text,label\na\n", "job.yaml:5:17: data.train.path: train.csv line 2 has 1"),
        ("config", ROBERTA, "job.yaml:9:15: data.max_length: 64 is more than the 63 tokens that"),
    ],
)
def test_what_does_not_suit_is_told_at_its_place(
    field: str, text: str, message: str, problems: Problems
) -> None:
    found = problems(**{field: text})
    assert any(message in problem for problem in found), found


def test_every_row_of_a_file_is_looked_at(problems: Problems) -> None:
    (found,) = problems(train=TRAIN + "a,yes\n" * 2000 + ",\n", held_back=EVAL)
    assert "train.csv row 2004: column 'label' holds ''" in found


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"p": "x", "r": ["y"]}', "train.jsonl row 1: column 'r' holds ['y'], not text"),
        (
            '{"p": "x", "r": ""}',
            "train.jsonl row 1: column 'r' holds '', not text of at least one character",
        ),
        ('{"p": "x", "r": "\\ud800"}', "train.jsonl line 1: \\ud800 is half of a character"),
        ('{"p": "x"}', "data.response: train.jsonl has no column 'r'; its columns are p"),
    ],
)
def test_prompts_and_responses_are_looked_at_too(row: str, message: str, tmp_path: Path) -> None:
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(row, encoding="utf-8")
    with pytest.raises(JobFileError) as caught:
        loads(ANSWERS, extra_rules=[rows_suit_the_job(tmp_path)])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        "[]",
        '[{"role": "user", "content": "hello"}]',
        '[{"role": "assistant", "content": "hello"}]',
    ],
)
def test_conversations_that_teach_nothing_are_found_at_any_row(row: str, tmp_path: Path) -> None:
    good = '{"m": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n'
    (tmp_path / "train.jsonl").write_text(good * 2000 + f'{{"m": {row}}}\n', encoding="utf-8")
    (tmp_path / "eval.jsonl").write_text(good, encoding="utf-8")
    job = ANSWERS.replace("  prompt: p\n  response: r\n", "  messages: m\n")
    message = r"data\.messages: train\.jsonl row 2001: .* the assistant's answer"
    with pytest.raises(JobFileError, match=message):
        loads(job, extra_rules=[rows_suit_the_job(tmp_path)])


def test_the_classes_of_a_parquet_file_are_compared_by_name(tmp_path: Path) -> None:
    kind = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=kind)
    rows.to_parquet(str(tmp_path / "train.parquet"))
    (tmp_path / "eval.csv").write_text(EVAL, encoding="utf-8")
    loads(JOB.replace("train.csv", "train.parquet"), extra_rules=[rows_suit_the_job(tmp_path)])
