"""Training of classifiers of tokens: metrics as seqeval's, proofs, comparison of versions."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import torch
import transformers

from jobs.training import eval_sample, publication
from jobs.training.events import Evaluated, Event, Proven
from serve.tasks.token_classification import comparison
from serve.version import ModelVersion
from tests.jobs.training import workers
from tests.tasks import token_rows

pytestmark = pytest.mark.filterwarnings("ignore")
TASK = "token-classification"


def by_seqeval(folder: Path, model: Path) -> dict[str, float]:
    """The metrics of a model's own predictions of the evaluation rows, by the libraries alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    made = transformers.AutoModelForTokenClassification.from_pretrained(model).eval()
    true, predicted = list[list[str]](), list[list[str]]()
    for line in (folder / "eval.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        inputs = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        words = inputs.word_ids()
        firsts = [words.index(word) for word in range(len(row["tokens"]))]
        with torch.no_grad():
            best = made(**inputs).logits[0].argmax(dim=-1)[firsts].tolist()
        true.append(row["tags"])
        predicted.append([made.config.id2label[index] for index in best])
    strict = {"mode": "strict", "scheme": seqeval.scheme.IOB2}
    return {
        "f1": seqeval.metrics.f1_score(true, predicted, **strict),
        "precision": seqeval.metrics.precision_score(true, predicted, **strict),
        "recall": seqeval.metrics.recall_score(true, predicted, **strict),
        "f1_macro": seqeval.metrics.f1_score(true, predicted, average="macro", **strict),
        "accuracy": seqeval.metrics.accuracy_score(true, predicted),
    }


def test_it_learns_and_publishes_what_transformers_scores_alike(
    entity_run: tuple[list[Event], ModelVersion], names_folder: Path
) -> None:
    events, version = entity_run
    last = [event.metrics for event in events if isinstance(event, Evaluated)][-1]
    assert last["f1"] > 0.8
    found = {name: value for name, value in last.items() if name != "loss"}
    assert found == pytest.approx(by_seqeval(names_folder, Path(version.path)))
    (proof,) = [event for event in events if isinstance(event, Proven)]
    assert (proof.refusal, proof.rows) == ("", token_rows.EVAL_ROWS)
    assert version.labels == ("O", "B-person", "I-person", "B-place", "I-place")
    card = (Path(version.path) / "README.md").read_text(encoding="utf-8")
    assert f"pipeline_tag: {TASK}" in card
    assert f'pipeline("{TASK}", "this/folder", aggregation_strategy="first")' in card


def test_a_published_model_with_other_scores_is_refused(entity_version: ModelVersion) -> None:
    rows = eval_sample.read(Path(entity_version.path))
    scores = [row.scores for row in rows]
    plain = publication.PlainScores(scores[:2], scores, 0)
    assert publication.compare(rows, plain, 1e-3, is_loss=False) == (0.0, "")
    other = [np.array(row.scores) for row in rows]
    other[3][0, 1] += 0.01
    moved = dataclasses.replace(plain, together=[each.tolist() for each in other])
    assert "beside others is 0.01 away" in publication.compare(rows, moved, 1e-3, is_loss=False)[1]
    short = dataclasses.replace(plain, alone=[rows[0].scores[:-1]])
    assert publication.compare(rows, short, 1e-3, is_loss=False)[1]


@pytest.mark.workers
@pytest.mark.parametrize("number", [2, 3])
def test_metrics_are_exact_on_any_number_of_workers(
    number: int, names_folder: Path, tiny_model: str, tmp_path: Path
) -> None:
    config = token_rows.config(names_folder, tiny_model, epochs=2.0, micro_batch_size=24 // number)
    events = workers.run(config, number, tmp_path, tmp_path / "checkpoints")
    found = [event["metrics"] for event in events if event["event"] == "Evaluated"][-1]
    (saved,) = (tmp_path / "checkpoints").glob("*/model")
    wanted = by_seqeval(names_folder, saved)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert wanted["f1"] > 0.0


def test_evaluation_texts_have_their_entities(
    entity_version: ModelVersion, names_folder: Path
) -> None:
    rows = comparison.evaluation(entity_version)
    line = json.loads((names_folder / "eval.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert rows[0].text == " ".join(line["tokens"])
    kinds = sorted(tag[2:] for tag in line["tags"] if tag.startswith("B-"))
    assert sorted(entity for entity, _, _ in rows[0].entities) == kinds
    names = {" ".join(name) for kind in token_rows.NAMES.values() for name in kind}
    assert {rows[0].text[start:end] for _, start, end in rows[0].entities} <= names


def test_a_gate_compares_entities() -> None:
    one, other = frozenset({("a", 0, 3)}), frozenset({("a", 0, 4)})
    worse = comparison.compare([one] * 40, [other] * 40, [one] * 40)
    assert worse.metrics["f1"].value == -1.0
    assert not worse.metrics["f1"].is_chance
    assert worse.metrics["agreement"].value == 0.0
    assert comparison.compare([one, one], [one, other], [one, one]).metrics["f1"].is_chance
