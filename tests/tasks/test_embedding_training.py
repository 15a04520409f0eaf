"""Sentence embedding from a job file to a published folder that other libraries load."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jobs.errors import JobFileError, ModelError
from jobs.loader import load
from jobs.loader.rows import rows_suit_the_job
from jobs.tasks.sentence_embedding import metrics
from jobs.training.corpus import load_corpus
from jobs.training.data import longest_row
from jobs.training.data.tokens import TokenSet
from jobs.training.engine.batch_plan import BatchPlan
from jobs.training.events import Evaluated, Event, Proven
from jobs.training.loop import train
from jobs.training.model import pooling
from jobs.training.session import build_session
from jobs.training.world import World
from orchestrator.decisions import plan, resolve
from serve.version import ModelVersion
from tests.builders import BERT_BASE, MINILM, any_of, inventory
from tests.jobs.training import workers
from tests.tasks.embedding import (
    PAIRS,
    SCORED,
    TASK,
    TRIPLETS,
    config_of,
    data_of,
    publish,
    spec_of,
    write_rows,
)

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = ["the dog runs", "a stone that never moves " * 12, "Ein Hund läuft.", "猫は寝る", "x"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


Published = tuple[ModelVersion, list[Event]]


@pytest.fixture(scope="module")
def published(rows: Path, tiny_model: str) -> Published:
    """A model of triplets."""
    events: list[Event] = []
    return publish(rows, tiny_model, events, proves=True, **TRIPLETS, dimensions=[16]), events


@pytest.fixture(scope="module")
def scored(rows: Path, tiny_model: str) -> Published:
    """A model of scored pairs, whose vectors are first tokens of any length."""
    events: list[Event] = []
    fields = {**SCORED, "pooling": "cls", "normalize": False}
    return publish(rows, tiny_model, events, **fields), events


JOB = """\
version: 1
name: sentences
model: {{base: bert-base-uncased, task: sentence-embedding}}
data:
  train: {{path: train.csv}}
  eval: {{path: eval.csv}}
  {data}
train: {train}
"""


@pytest.mark.parametrize(
    ("data", "train", "message"),
    [
        ("anchor: a", "{}", r"5:3: data: sentence-embedding needs the columns anchor and positive"),
        ("score: s", "{}", r"5:3: data: sentence-embedding needs the columns anchor and positive"),
        (
            "{anchor: a, positive: b, score: s}",
            "{}",
            r"data: sentence-embedding needs the columns anchor and positive",
        ),
        ("text: [a, b]\n  label: s", "{}", r"8:3: data.label: "),
        ("anchor: a\n  positive: a", "{}", r"data: names the column 'a' twice"),
        ("anchor: a\n  positive: x", "{}", r"8:13: data.positive: train.csv has no column 'x'"),
        ("text: [a, b]\n  score: a", "{}", r"data: names the column 'a' twice"),
        (
            "text: [a, b]\n  score: c",
            "{}",
            r"8:10: data.score: .* holds 'the .*; a score is a numb",
        ),
        (
            "text: [a, b]\n  score: s",
            "{}",
            r"8:10: data.score: .* scores lie between -1 and 1; set data.highest_score",
        ),
        (
            "anchor: a\n  positive: b\n  dimensions: [8, 16]",
            "{}",
            r"9:15: data.dimensions: must fall without repeats; write \[16, 8\]",
        ),
        (
            "anchor: a\n  positive: b",
            "{eval: {metrics: [spearman]}}",
            r"9:26: train.eval.metrics\[0\]: 'spearman' is not a metric of sentence-embedding; it"
            r" has mrr, recall_at_1, recall_at_10",
        ),
        (
            "anchor: a\n  positive: b",
            "{eval: {metrics: [accuracy]}}",
            r"9:26: train.eval.metrics\[0\]: 'accuracy' is not a metric of sentence-embedding",
        ),
        (
            "anchor: a\n  positive: b",
            "{global_batch_size: 32, micro_batch_size: 8}",
            r"9:50: train.micro_batch_size: micro batch size 8 splits the global batch of 32, whose"
            r" rows are each other's negatives; use auto, or 32",
        ),
    ],
)
def test_a_job_file_that_mixes_things_up_is_refused_with_its_place(
    data: str, train: str, message: str, rows: Path
) -> None:
    path = rows / "refused.yaml"
    if data.startswith("{"):
        data = "\n  ".join(part.strip() for part in data.strip("{}").split(","))
    path.write_text(JOB.format(data=data, train=train), encoding="utf-8")
    with pytest.raises(JobFileError) as caught:
        load(path, extra_rules=(rows_suit_the_job(rows),))
    problems = [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]
    assert any(re.search(message, problem) for problem in problems), problems


def test_the_batch_of_pairs_is_one_pass_on_every_placement(rows: Path, tiny_model: str) -> None:
    spec = spec_of(rows, tiny_model, **PAIRS)
    assert spec.metrics == ("mrr", "recall_at_1", "recall_at_10")
    train = spec.train.model_copy(update={"global_batch_size": 24})
    places = {"any_of": any_of("L40S:1", "L40S:2", "T4:4")}
    spec = type(spec).model_validate(
        {**spec.model_dump(exclude_unset=True), "train": train, "resources": places}
    )
    found = plan.make_plan(spec, inventory(L40S=2, T4=4), BERT_BASE)
    assert [(c.micro_batch_size, c.accumulation) for c in found.candidates] == [
        (24, 1),
        (12, 1),
        (6, 1),
    ]
    one = resolve.training_config(spec, found.candidates[1].execution, {})
    assert resolve.with_smaller_micro_batch(one) is None
    assert resolve.fewer_workers(one, 2, 1) == []
    scored = spec_of(rows, tiny_model, **SCORED)
    assert scored.metrics == ("spearman", "pearson")
    free = resolve.training_config(scored, found.candidates[1].execution, {})
    assert resolve.with_smaller_micro_batch(free) is not None


def test_rows_that_are_compared_are_drawn_whatever_their_length(
    rows: Path, tiny_model: str
) -> None:
    """Rows by length: each batch would have one length."""
    ids = np.arange(60)
    offsets = np.cumsum([0, *([2] * 30), *([20] * 30)])
    columns = {"input_ids": np.zeros(offsets[-1], np.int64)}
    tokens = TokenSet(columns, offsets, ids, pad_token_id=0)
    mixed = {}
    for name, fields in (("pairs", PAIRS), ("scored", SCORED)):
        config = config_of(rows, tiny_model, data_of(rows, **fields), global_batch_size=10)
        found = BatchPlan(config, tokens, World(0, 1, torch.device("cpu")))
        batches = [found.rows(step) for step in range(found.steps_per_epoch)]
        assert sorted(np.concatenate(batches)) == ids.tolist()
        mixed[name] = sum(len({int(tokens.lengths[row]) for row in batch}) > 1 for batch in batches)
    assert mixed["pairs"] > 4 > mixed["scored"]


def test_planning_counts_the_longest_text_and_all_texts_of_a_row(
    rows: Path, tiny_model: str
) -> None:
    spec = spec_of(rows, tiny_model, **TRIPLETS)
    assert spec.data.sequences == (("a",), ("b",), ("c",))
    longest = longest_row.longest_row(spec)
    assert longest is not None
    assert 7 <= longest <= 12
    one, three = (
        plan.make_plan(spec_of(rows, tiny_model, **fields), inventory(L40S=1), BERT_BASE)
        .candidates[0]
        .memory
        for fields in (PAIRS, TRIPLETS)
    )
    assert one is not None
    assert three is not None
    assert three.expected_gib > one.expected_gib


def test_it_learns_and_other_libraries_get_the_same_vectors(published: Published) -> None:
    version, events = published
    judged = [event.metrics for event in events if isinstance(event, Evaluated)]
    assert judged[-1]["mrr"] > 0.6
    assert judged[-1]["loss"] < judged[0]["loss"]
    (proof,) = [event for event in events if isinstance(event, Proven)]
    assert (proof.refusal, proof.rows) == ("", 37)
    assert proof.difference < 1e-5
    card = (Path(version.path) / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: sentence-similarity" in card
    assert "library_name: sentence-transformers" in card
    assert 'SentenceTransformer("this/folder")' in card


def of_transformers(version: ModelVersion, texts: list[str]) -> Any:
    """Vectors from plain transformers, with the mean of tokens or the first one, each alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = transformers.AutoModel.from_pretrained(version.path).eval()
    found = pooling.read(Path(version.path))
    assert found is not None
    vectors = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, truncation=True, return_tensors="pt"))[0][0]
        vector = hidden[0] if found.mode == "cls" else hidden.mean(dim=0)
        vectors.append(vector / vector.norm() if found.is_normalized else vector)
    return torch.stack(vectors).numpy()


@pytest.mark.parametrize("kind", ["published", "scored"])
def test_sentence_transformers_loads_the_folder_with_the_same_vectors(
    kind: str, request: pytest.FixtureRequest
) -> None:
    library = pytest.importorskip("sentence_transformers")
    version, _ = request.getfixturevalue(kind)
    model = library.SentenceTransformer(version.path, device="cpu")
    assert model.max_seq_length == 32
    found = model.encode(TEXTS, batch_size=3)
    expected = of_transformers(version, TEXTS)
    assert np.abs(found - expected).max() < 1e-5
    lengths = np.linalg.norm(found, axis=1)
    assert (np.abs(lengths - 1).max() < 1e-5) == (kind == "published")


@pytest.mark.parametrize("kind", ["published", "scored"])
def test_metrics_are_those_of_the_libraries_on_the_published_vectors(
    kind: str, rows: Path, request: pytest.FixtureRequest
) -> None:
    ranking = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    version, events = request.getfixturevalue(kind)
    judged = [event.metrics for event in events if isinstance(event, Evaluated)][-1]
    table = np.genfromtxt(rows / "eval.csv", delimiter=",", names=True, dtype=None, encoding="utf8")
    columns = [[str(text) for text in table[name]] for name in ("a", "b", "c")]
    anchors, positives, negatives = (of_transformers(version, texts) for texts in columns)
    if kind == "scored":
        cosines = (metrics.unit(anchors) * metrics.unit(positives)).sum(axis=1)
        assert judged["spearman"] == pytest.approx(
            stats.spearmanr(cosines, table["s"])[0], abs=1e-3
        )
        assert judged["pearson"] == pytest.approx(stats.pearsonr(cosines, table["s"])[0], abs=1e-4)
        return
    # each row by itself: candidates are distinct, without other positives of the same anchor
    texts = list(dict.fromkeys([*columns[1], *columns[2]]))
    pool = dict(zip([*columns[1], *columns[2]], [*positives, *negatives], strict=True))
    reciprocal, recalls = [], {1: [], 10: []}
    for anchor, own, vector in zip(columns[0], columns[1], anchors, strict=True):
        others = {b for a, b in zip(columns[0], columns[1], strict=True) if a == anchor} - {own}
        candidates = [text for text in texts if text not in others]
        similar = np.array([[float(vector @ pool[text]) for text in candidates]])
        is_own = np.array([[int(text == own) for text in candidates]])
        reciprocal.append(ranking.label_ranking_average_precision_score(is_own, similar))
        for k, found in recalls.items():
            best = is_own.argmax(axis=1)
            labels = range(len(candidates))
            found.append(ranking.top_k_accuracy_score(best, similar, k=k, labels=labels))
    assert judged["mrr"] == pytest.approx(np.mean(reciprocal), abs=1e-9)
    assert judged["recall_at_1"] == pytest.approx(np.mean(recalls[1]), abs=1e-9)
    assert judged["recall_at_10"] == pytest.approx(np.mean(recalls[10]), abs=1e-9)


def test_a_model_whose_vectors_are_all_alike_or_no_numbers_ranks_nothing() -> None:
    texts = np.arange(40).reshape(20, 2)
    for value in (1.0, np.nan):
        same = np.full((20, 4), value, np.float32)
        found = metrics.ranking(same, [same], texts, scale=20.0)
        assert found["mrr"] == pytest.approx(1 / 20)
        assert found["recall_at_10"] == 0.0


@pytest.mark.workers
@pytest.mark.parametrize("fields", [TRIPLETS, SCORED], ids=["triplets", "scored"])
def test_any_number_of_workers_learns_and_judges_alike(
    fields: dict[str, Any], rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    found = {}
    for count in (1, 2, 3):
        config = config_of(
            rows,
            tiny_model,
            data_of(rows, **fields),
            epochs=0.5,
            global_batch_size=30,
            micro_batch_size=30 // count,
        )
        events = workers.run(config, count, tmp_path)
        judged = [event["metrics"] for event in events if event["event"] == "Evaluated"]
        found[count] = [*workers.losses(events), *judged[-1].values()]
    assert found[2] == pytest.approx(found[1], abs=1e-4)
    assert found[3] == pytest.approx(found[1], abs=1e-4)


def test_a_pooler_that_no_vector_depends_on_is_not_trained(rows: Path, tiny_model: str) -> None:
    config = config_of(rows, tiny_model, data_of(rows, **PAIRS))
    session = build_session(config, load_corpus(config), World(0, 1, torch.device("cpu")))
    names = {name for name, _ in session.model.named_parameters() if "pooler" in name}
    assert names
    assert not names & {weight.name for weight in session.update.weights}


def test_the_pooling_of_a_base_is_taken_over(tmp_path: Path, tiny_model: str) -> None:
    assert pooling.of_base(MINILM) == "mean"
    assert pooling.of_base(tiny_model) is None
    pooling.write(pooling.Pooling("cls"), tmp_path, size=8, max_length=32)
    assert pooling.of_base(str(tmp_path)) == "cls"
    settings = tmp_path / "1_Pooling" / "config.json"
    settings.write_text(json.dumps({"pooling_mode": "lasttoken"}), encoding="utf-8")
    with pytest.raises(ModelError, match="pools by lasttoken, which is not supported; set data"):
        pooling.of_base(str(tmp_path))


@pytest.mark.parametrize("pads_left", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_padding_on_either_side_is_left_out_of_a_vector(mode: Any, pads_left: bool) -> None:  # noqa: FBT001
    torch.manual_seed(1)
    real, padding = torch.randn(1, 3, 8), torch.full((1, 2, 8), 100.0)
    parts = [padding, real] if pads_left else [real, padding]
    mask = torch.tensor([[0, 0, 1, 1, 1]] if pads_left else [[1, 1, 1, 0, 0]])
    found = pooling.Pooling(mode, is_normalized=False).pool(torch.cat(parts, dim=1), mask)
    expected = real.mean(dim=1) if mode == "mean" else real[:, 0]
    torch.testing.assert_close(found, expected)


def test_dimensions_beyond_a_vector_are_refused(rows: Path, tiny_model: str) -> None:
    data = data_of(rows, **PAIRS, dimensions=[32, 8])
    with pytest.raises(ModelError, match="has 32, and vectors of the base have 32 numbers"):
        train(config_of(rows, tiny_model, data), lambda _: None)


def test_scores_choose_a_variant_of_the_task(rows: Path, tiny_model: str) -> None:
    assert spec_of(rows, tiny_model, **PAIRS).task.name == TASK
    assert spec_of(rows, tiny_model, **SCORED).task.name == f"{TASK}/scored"
