"""Commands, fields and job fragments that pages, alerts and messages name are there as written."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.exceptions
import yaml
from pydantic import ValidationError

from jobs.loader import loads, overrides
from jobs.loader.fields import field_names, is_field
from jobs.loader.source import parse
from jobs.spec import JobSpec
from orchestrator.cli import app
from tests.builders import MINIMAL
from tests.docs.pages import INLINE, PAGES, ROOT, blocks, inline_code, name_of

PACKAGES = ("raywinnow", "jobs", "cluster", "serve", "orchestrator")
RULES = ROOT / "infra/monitoring/rules.yml"
SECTION = rf"({'|'.join(field_names(()))})"
FIELD = re.compile(rf"({SECTION}(\.[a-z_0-9]+)*)(: .+)?")
FILE = re.compile(r".*\.(py|ya?ml|json|jsonl|csv|md|safetensors)")
JOB_ENDINGS = (".yaml", ".yml")
"""Of a word that stands for a job file."""


def annotations() -> Iterator[str]:
    """What alerts tell those who are paged."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield from rule.get("annotations", {}).values()


def block_commands(tool: str) -> Iterator[tuple[str, list[str]]]:
    """Every command of a tool in a block, without variables before it and the file after it."""
    for page in PAGES:
        for language, _, text in blocks(page):
            if language in ("bash", "sh"):
                for line in text.replace("\\\n", " ").splitlines():
                    words = shlex.split(re.split(r"\s[|&>](?=\s|$)", line)[0], comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words = words[1:]
                    if words[:1] == [tool]:
                        yield name_of(page), words[1:]


def sentences() -> Iterator[tuple[str, str]]:
    """Code in the sentences of pages, alerts and our own messages."""
    for page in PAGES:
        yield from ((name_of(page), code) for code in inline_code(page))
    yield from (("alert", code) for text in annotations() for code in INLINE.findall(text))
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("**/*.py")):
            for code in INLINE.findall(path.read_text(encoding="utf-8")):
                yield name_of(path), code


def spellings(code: str) -> list[list[str]]:
    """The commands that one in a sentence stands for: with options and without, each choice."""
    text = re.sub(r"\{\{.*?\}\}|…", "NAME", code.replace("\\|", "|"))
    shortest = text
    while (shorter := re.sub(r"\[[^][]*\]", "", shortest)) != shortest:
        shortest = shorter
    first, *others = re.sub(r"[][]", "", text).split(" | ")
    words = shlex.split(re.sub(r"(?<=\S)\|\S+", "", first))
    choices = [[*words[:-1], *shlex.split(other)] for other in others]
    return [words, *choices, shlex.split(shortest.split(" | ")[0])]


def mistake(words: list[str], *, is_whole: bool) -> str:
    """What is wrong with a command, its options or its number of arguments; empty if nothing is.

    In a sentence a command may be named alone, without what it needs.
    """
    command: Any = typer.main.get_command(app)
    rest, context = words, command.make_context("winnow", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        if not rest:
            return "names no command" if is_whole else ""
        named, rest = rest[0], rest[1:]
        command = command.get_command(context, named)
        if command is None:
            return f"there is no command {named}"
    if not rest and not is_whole:
        return ""
    try:
        job = command.make_context(command.name, list(rest), parent=context).params.get("job")
    except typer.exceptions.TyperException as error:
        return str(error)
    return "" if job is None or str(job).endswith(JOB_ENDINGS) else f"{job} is no job file"


@pytest.mark.parametrize(("page", "words"), list(block_commands("winnow")), ids=str)
def test_a_command_in_a_block_is_there_with_its_options_and_arguments(
    page: str, words: list[str]
) -> None:
    assert mistake(words, is_whole=True) == ""


@pytest.mark.parametrize(
    ("place", "code"),
    sorted({found for found in sentences() if re.match("winnow [a-z]", found[1])}),
    ids=str,
)
def test_a_command_in_a_sentence_is_there_with_its_options_and_arguments(
    place: str, code: str
) -> None:
    assert [found for w in spellings(code) if (found := mistake(w[1:], is_whole=False))] == []


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("winnow deploy {{ $labels.model }}", "NAME is no job file"),
        ("winnow models restore", "there is no command restore"),
        ("winnow run one.yaml two.yaml", "unexpected extra argument"),
        ("winnow plan job.yaml [--nodes nodes.json]", "No such option: --nodes"),
        ("winnow models list \\| show \\| forget", "there is no command forget"),
        ("winnow token add NAME [--into FILE]", "No such option: --into"),
    ],
)
def test_planted_mistakes_in_commands_are_found(code: str, what: str) -> None:
    assert what in " ".join(mistake(words[1:], is_whole=False) for words in spellings(code))


@pytest.mark.parametrize(("page", "words"), list(block_commands("ray")), ids=str)
def test_a_command_of_ray_in_a_block_is_there_with_its_options(page: str, words: list[str]) -> None:
    import ray.scripts.scripts

    command: Any = ray.scripts.scripts.cli
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"ray has no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


def test_what_is_checked_is_found() -> None:
    """A change of notation would leave nothing to check."""
    assert len(list(block_commands("winnow"))) > 25
    assert len(list(block_commands("ray"))) > 5
    places = {place for place, code in sentences() if code.startswith("winnow ")}
    assert {"README.md", "alert", "docs/how-to/on-prem.md", "cluster/session.py"} <= places
    assert {"README.md", "docs/how-to/cost.md"} <= {page for page, _ in FRAGMENTS}


def test_commands_in_alerts_are_marked_as_code() -> None:
    """Others would pass unseen."""
    for text in annotations():
        assert not re.search(r"\bwinnow [a-z]", INLINE.sub("", text))


@pytest.mark.parametrize(
    ("place", "code"),
    sorted(
        {
            (place, code)
            for place, code in sentences()
            if FIELD.fullmatch(code) and not place.endswith(".py") and not FILE.fullmatch(code)
        }
    ),
    ids=str,
)
def test_a_field_in_a_sentence_is_one_of_the_job_with_a_value_that_it_takes(
    place: str, code: str
) -> None:
    path, _, value = code.partition(": ")
    assert is_field(path)
    if value:
        text = value.split(" \\| ")[0].replace(", …", "")
        assert faults({path: parse(f"value: {text}", place).values["value"]}) == []


def test_fields_that_alerts_name_are_in_the_job() -> None:
    named = [
        found[0] for text in annotations() for found in re.finditer(rf"{SECTION}\.[\w.]+", text)
    ]
    assert named
    assert all(is_field(path.rstrip(".")) for path in named)


FRAGMENTS = [
    (name_of(page), text) for page in PAGES for kind, _, text in blocks(page) if kind == "yaml"
]


@pytest.mark.parametrize(("page", "text"), FRAGMENTS, ids=lambda value: value[:30])
def test_a_block_of_yaml_is_a_job_or_a_part_of_one(page: str, text: str) -> None:
    values = parse(text, page).values
    values.pop("extends", None)  # the loader takes it out
    assert faults(values) == []
    if "version" in values:
        loads(text, page)


@pytest.mark.parametrize(
    "fields",
    [
        {"train.schedule": "linear"},
        {"train.epochs": "many"},
        {"serve.replicas": {"least": 1}},
        {"gpus": 2},
    ],
)
def test_planted_mistakes_in_fields_are_found(fields: dict[str, Any]) -> None:
    assert faults(fields)


def faults(fields: dict[str, Any]) -> list[str]:
    """What is wrong with fields by their paths, but for others that a whole job needs."""
    values = parse(MINIMAL, "").values
    for path, value in fields.items():
        overrides.put(values, path, value)
    try:
        JobSpec.model_validate(values)
    except ValidationError as error:
        return [str(found) for found in error.errors() if found["type"] != "missing"]
    return []
