"""Job files of seq2seq: right ones are read, and mixed-up ones are refused in place."""

import json
from pathlib import Path

import pytest

from jobs.errors import JobFileError
from jobs.loader import load
from jobs.loader.rows import rows_suit_the_job
from tests.tasks import swaps

JOB = """\
version: 1
name: facts
model: {base: google-t5/t5-small, task: seq2seq}
data:
  train: {path: train.jsonl}
  eval: {path: eval.jsonl}
  source: facts
  target: sentence
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((), ""),
        (("source: facts", "source: fact"), "7:11: data.source: train.jsonl has no column"),
        (("  target: sentence\n", ""), "5:3: data.target: is missing; name the column"),
        (
            ("target: sentence", "target: facts"),
            "data.target: column 'facts' is already the source",
        ),
        (("target: sentence", "label: sentence"), "label"),
        (("task: seq2seq", "task: seq2sek"), "did you mean 'seq2seq'"),
        (("source: facts", "generate: {num_beams: 0}\n  source: facts"), "generate.num_beams"),
        (
            ("source: facts", "generate: {min_new_tokens: 9, max_new_tokens: 3}\n  source: facts"),
            "data.generate: min_new_tokens 9 is more than max_new_tokens 3",
        ),
        (
            ("source: facts", "source_language: en\n  source: facts"),
            "source_language and target_language belong together",
        ),
        (
            ("data:", "train: {eval: {metrics: [accuracy]}}\ndata:"),
            "'accuracy' is not a metric of seq2seq; it has token_accuracy, perplexity, rouge1",
        ),
    ],
)
def test_a_job_that_mixes_things_up_is_refused_in_place(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    swaps.write(tmp_path)
    text = JOB
    path = tmp_path / "job.yaml"
    path.write_text(text.replace(*change) if change else text, encoding="utf-8")
    if not said:
        spec = load(path, extra_rules=(rows_suit_the_job(tmp_path),))
        assert spec.metrics == ("token_accuracy", "perplexity")
        return
    with pytest.raises(JobFileError) as caught:
        load(path, extra_rules=(rows_suit_the_job(tmp_path),))
    assert said in "\n".join(map(str, caught.value.problems))


def test_references_of_training_rows_are_refused_before_training(
    tmp_path: Path,
) -> None:
    swaps.write(tmp_path)
    several = json.dumps({"facts": "a", "sentence": ["b", "c"]})
    (tmp_path / "train.jsonl").write_text(f"{several}\n", encoding="utf-8")
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    with pytest.raises(JobFileError, match=r"holds 2 texts, and training learns one target a row"):
        load(path, extra_rules=(rows_suit_the_job(tmp_path),))
