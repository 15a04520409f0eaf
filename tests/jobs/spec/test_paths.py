"""Paths with environment variables, which are taken as they are written."""

from pathlib import Path

import pytest

from jobs.errors import JobFileError
from jobs.loader import loads
from jobs.loader.files import files_exist
from jobs.loader.rows import rows_suit_the_job
from jobs.spec.paths import why_not_literal
from tests.builders import MINIMAL

AUTH = "serve: {route: /a, auth: {tokens_file: /home/$USER/tokens}}\n"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("bert-base-uncased", "'${HOME}/bert'", "model.base"),
        ("bert-base-uncased", "package://$PACKAGE/model", "model.base"),
        ("path: train.csv", "path: $DATA/train.csv", "data.train.path"),
        ("path: train.csv", "path: $DATA", "data.train.path"),
        ("path: eval.csv", "path: ['s3://b/${DAY}.csv']", "data.eval.path[0]"),
        ("version: 1\n", "version: 1\nstorage: s3://$BUCKET/x\n", "storage"),
        ("version: 1\n", "version: 1\ntracking: {mlflow: {uri: $URI}}\n", "tracking.mlflow.uri"),
        ("version: 1\n", f"version: 1\n{AUTH}", "serve.auth.tokens_file"),
    ],
)
def test_a_variable_in_a_path_is_refused_once_at_its_field(
    old: str, new: str, field: str, tmp_path: Path
) -> None:
    for name in ("train.csv", "eval.csv"):
        (tmp_path / name).write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    rules = [files_exist(tmp_path), rows_suit_the_job(tmp_path)]
    with pytest.raises(JobFileError) as caught:
        loads(MINIMAL.replace(old, new), extra_rules=rules)
    (problem,) = caught.value.problems
    assert problem.path == field
    assert "which is not expanded here" in problem.message
    assert f"--set {field.removesuffix('[0]')}=..." in problem.message


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("$HOME/a.csv", "variable $HOME, which is not expanded here; write ~/a.csv"),
        ("${HOME}/a.csv", "variable ${HOME}, which is not expanded here; write ~/a.csv"),
        ("$HOMES/a.csv", "variable $HOMES, which is not expanded here; write ${HOMES}/a.csv"),
        ("$HOME/$DAY.csv", "variable $HOME, which is not expanded here; write ~/${DAY}.csv"),
        ("${DAY}.csv", "variable ${DAY}, which is not expanded here; write its value"),
        ("a$.csv", ""),
        ("~/a.csv", ""),
        ("s3://bucket/{day}.csv", ""),
    ],
)
def test_a_home_folder_is_written_with_a_tilde(path: str, advice: str) -> None:
    assert why_not_literal(path).endswith(advice) is True
    assert bool(why_not_literal(path)) == bool(advice)


def test_text_that_is_no_path_may_hold_variables() -> None:
    text = MINIMAL.replace("text: text", "text: $text\n  label: '${label}'")
    assert loads(text).data.text_columns == ("$text",)


def test_a_tokens_file_that_begins_with_a_variable_is_refused_with_the_reason() -> None:
    with pytest.raises(JobFileError, match=r"start with / and write it in full: neither ~ nor"):
        loads(MINIMAL + AUTH.replace("/home/$USER", "$HOME"))
