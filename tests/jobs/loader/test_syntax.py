"""Mistakes in YAML are reported in the line that has them, with what to write instead."""

from pathlib import Path

import pytest

from jobs.errors import JobFileError
from jobs.loader import loads
from jobs.loader.source import parse

ROOT = Path(__file__).parents[3]
QUICKSTART = (ROOT / "examples/quickstart.yaml").read_text(encoding="utf-8").splitlines()
LAST_EPOCHS = QUICKSTART.index("  epochs: 1")


def mistake(text: str) -> str:
    with pytest.raises(JobFileError) as caught:
        parse(text, "job.yaml")
    (problem,) = caught.value.problems
    return f"{problem.line}:{problem.column}: {problem.message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  seed: 1\n  epochs 3\n  x: 1\n", "3:3: the colon is missing; write `epochs: 3`"),
        ("train:\n  epochs 3\n  seed: 1\n", "2:3: the colon is missing; write `epochs: 3`"),
        ("train:\n  seed: 1\n  epochs 3\n", "3:3: the colon is missing; write `epochs: 3`"),
        ("a: 1\n\n# b\nepoch 3\nc: 1\n", "4:1: the colon is missing; write `epochs: 3`"),
        ("a: 1\nlr = 3e-5 # b\nc: 1\n", "2:1: the colon is missing; write `lr: 3e-5`"),
        ("a: 1\ntrain\n  epochs: 3\n", "2:1: the colon is missing; write `train:`"),
        ("version 1\nname: x\n", "1:1: the colon is missing; write `version: 1`"),
        ("a:\n  - spot true\n    b: 1\n", "2:5: the colon is missing; write `spot: true`"),
        ("a: 1\nepochs:3\nc: 1\n", "2:1: a space is missing after the colon; write `epochs: 3`"),
        ("a: b: c\n", "1:5: a second key or colon in one line; put the value in quotes"),
    ],
)
def test_a_forgotten_colon_is_found_in_its_line_with_the_field_it_means(
    text: str, message: str
) -> None:
    assert mistake(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 'open\nb: 1\nc: 2\n", "1:4: the quote is never closed"),
        ('a: 1\nb: "open\nc: 2\n', "2:4: the quote is never closed"),
        ("a: 'open\nb: 'x'\nc: 2\n", "1:4: the quote is not closed in its line but only in line 2"),
        ("a: {b: 'c}\nd: {e: 'f'}\n", "1:8: the quote is not closed in its line but only in line"),
        ("a: 'it's'\n", "1:8: text follows the closing quote"),
        ('a: "C:\\data"\n', "1:8: a backslash means nothing before this letter"),
        ("a: *.csv\n", "1:4: a value cannot begin with *; put it in quotes"),
        ("a: @b\n", "1:4: a value cannot begin with @; put it in quotes"),
        ("a: [b, c\nd: 1\n", "1:4: the [ is never closed; write ] where it ends"),
        ("a: {b: c\nd: 1\n", "1:4: the { is never closed; write } where it ends"),
        ("a: {b: [c}\n", "1:10: a comma or ] is missing here"),
        ("a: {\n  b: c\n  d: e\n}\n", "2:7: a comma is missing at the line's end"),
        ("a: {b: ${HOME}/c}\n", "1:8: a variable inside of braces needs quotes"),
        ("a: {b: c}}\n", "1:10: nothing is open that } closes"),
    ],
)
def test_quotes_and_brackets_are_found_where_they_open(text: str, message: str) -> None:
    assert mistake(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "2:1: a tab cannot indent YAML; use spaces"),
        ("a:\n  b: 1\n  \tc: 1\n", "3:3: a tab cannot indent YAML; use spaces"),
        ("a:\n  b: 1\n    c: 2\n", "3:5: indented by 4, but line 2 by 2"),
        ("a:\n    b: 1\n  c: 2\n", "3:3: indented by 2, but line 2 by 4"),
        ("a:\n   b: {}\n  c: {}\n  d: 1\n", "2:4: indented by 3, but line 3 by 2"),
        (" a: 1\nb: 2\n", "1:2: indented by 1; begin at the left edge"),
        ("a:\n  - b: 1\n   c: 2\n", "3:4: indented by 3, but line 2 by 4"),
        ("a:\n  - b: 1\n     c: 2\n", "3:6: indented by 5, but line 2 by 4"),
    ],
)
def test_a_wrong_indentation_is_found_in_its_line(text: str, message: str) -> None:
    assert mistake(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  - {b: 1}\n  {b: 2}\n", "3:3: the dash is missing; write `- {b: 2}`"),
        ("a:\n  - b: 1\n    c: 1\n  b: 2\n", "4:3: the dash is missing; write `- b: 2`"),
        ("a:\n  {b: 1}\n  - {b: 2}\n", "2:3: the dash is missing; write `- {b: 1}`"),
        ("a:\n  - f1\n  mcc\nb: 1\n", "3:3: the dash is missing; write `- mcc`"),
        ("a:\n  - b: 1\n  -b: 2\n", "3:3: a space is missing after the dash; write `- b: 2`"),
        ("a: - b\n", "1:4: a list's item cannot follow a key in its line"),
    ],
)
def test_a_forgotten_dash_is_found_in_its_line(text: str, message: str) -> None:
    assert mistake(text).startswith(message)


@pytest.mark.parametrize(
    ("old", "new"),
    [(":", ""), (": ", ":"), (": ", ": '"), (": ", ': "'), ("  ", "\t"), ("- ", ""), ("}", "")],
)
def test_one_mistake_anywhere_in_a_job_is_reported_in_its_line(old: str, new: str) -> None:
    """A line that is still the job's YAML has another problem, or none."""
    elsewhere = []
    for number, line in enumerate(QUICKSTART):
        written = line.partition("#")[0]
        if old not in written:
            continue
        changed = [*QUICKSTART[:number], written.replace(old, new, 1), *QUICKSTART[number + 1 :]]
        with pytest.raises(JobFileError) as caught:
            loads("\n".join(changed))
        if number + 1 not in {problem.line for problem in caught.value.problems}:
            elsewhere.append((number + 1, str(caught.value)))
    assert not elsewhere


def test_a_mistake_that_no_rule_knows_is_told_in_the_parsers_words() -> None:
    assert mistake("a: |x\n  b\n").startswith("1:5: not valid YAML: expected chomping")
