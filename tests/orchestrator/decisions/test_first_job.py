"""What a first job file says can be read back, whatever columns and files are called."""

import importlib.resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.loader import loads
from jobs.spec import task_registry
from jobs.spec.data import SourceSpec
from jobs.training.data.roles import Roles
from orchestrator.decisions import first_job
from orchestrator.decisions.first_job import FirstJob

NAMES = st.one_of(
    st.sampled_from(
        ["1", "1e5", "null", "true", "no", "a: b", "# c", "{x}", "- d", "'", "$x", "~"]
    ),
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
    ),
)


def written(job: FirstJob) -> str:
    """The text of its file."""
    package, _, name = job.roles.form.template.partition("/")
    place = importlib.resources.files(package).joinpath(name)
    return first_job.fill(place.read_text("utf-8"), job, "job.yaml")


def labelled(*text: str, label: str) -> Roles:
    task = task_registry.find("text-classification")
    return Roles(task, task.learns_from[0], {"text": text, "label": (label,)})


def chats(column: str) -> Roles:
    task = task_registry.find("causal-lm")
    return Roles(task, task.learns_from[0], {"messages": (column,)})


def job(roles: Roles, path: str = "train.csv", **labels: int) -> FirstJob:
    return FirstJob("reviews", SourceSpec(path=path), SourceSpec(path="e.csv"), roles, labels)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(NAMES, min_size=3, max_size=3, unique=True))
def test_columns_and_paths_of_any_name_can_be_read_back(names: list[str]) -> None:
    first, second, label = names
    # what looks like a variable is refused, and a name that is an ending alone
    path = f"{label.replace('$', 'S').replace('/', '-')}.csv"
    data = loads(written(job(labelled(first, second, label=label), path))).data
    assert (data.text, data.label, data.train.path) == ((first, second), label, path)
    data = loads(written(job(chats(first)))).data
    assert data.messages == first


def test_labels_cannot_break_out_of_their_comment() -> None:
    text = written(job(labelled("text", label="label"), **{"a\nserve: null": 1, "b  #\x07": 2}))
    assert "# a serve: null, b #\n" in text
    assert loads(text).serve is not None


@pytest.mark.parametrize(
    ("path", "stem", "name"),
    [
        ("My_Reviews.csv", "My_Reviews", "my-reviews"),
        ("/data/Café 2024.jsonl.gz", "Café 2024", "cafe-2024"),
        ("rows/part-*.parquet", "part", "part"),
        ("rows/*.csv", "rows", "rows"),
        ("*.csv", "data", "data"),
        ("./saved", "saved", "saved"),
        ("s3://bucket/rows.tsv.zst", "rows", "rows"),
        ("v1.2.csv", "v1.2", "v1-2"),
        ("漢字.csv", "漢字", "my-model"),
        (f"{'a' * 70}.csv", "a" * 70, "a" * 63),
    ],
)
def test_a_job_is_named_after_its_file(path: str, stem: str, name: str) -> None:
    assert (first_job.stem_of(path), first_job.name_of(path)) == (stem, name)


@pytest.mark.parametrize(
    ("words", "classifier", "chat"),
    [
        ([3] * 100, 128, 128),
        ([3] * 96 + [900] * 4, 128, 128),
        ([100], 256, 256),
        ([5000], 512, 2048),
    ],
)
def test_max_length_rises_with_what_most_rows_need(
    words: list[int], classifier: int, chat: int
) -> None:
    texts = [("word " * count, "") for count in words]
    assert first_job.length_for(texts, task_registry.find("text-classification")) == classifier
    assert first_job.length_for(texts, task_registry.find("causal-lm")) == chat


def test_ten_labels_are_listed_and_the_rest_counted() -> None:
    labels = [str(number) for number in range(12)]
    assert first_job.first_and_more(labels) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert first_job.first_and_more(labels[:10]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
