"""Encoder-decoder models: what is learnt, what is written, and what others read of a model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import transformers
from rouge_score.rouge_scorer import RougeScorer

from jobs.errors import DataError, ModelError, TrainingError
from jobs.spec import task_registry
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.tasks.seq2seq import rows
from jobs.training import eval_sample, plain_scores, publication, session, text_metrics
from jobs.training.corpus import load_corpus
from jobs.training.data.tokens import TARGET_IDS
from jobs.training.events import Evaluated, Event, Stepped
from jobs.training.loop import train
from jobs.training.session import build_session
from jobs.training.world import World
from serve.version import ModelVersion
from tests import tiny
from tests.jobs.training import workers
from tests.tasks import swaps

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = World(0, 1, torch.device("cpu"))
FAMILIES = ("t5", "bart", "mbart", "pegasus", "marian", "m2m_100")
WRITTEN = ("rouge1", "rouge2", "rougeL", "bleu", "chrf", "exact_match")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows."""
    return swaps.write(tmp_path_factory.mktemp("swaps"))


@pytest.fixture(scope="module")
def bart(folder: Path) -> str:
    """A tiny BART with random weights."""
    return swaps.base_of(folder, "bart")


@pytest.fixture(scope="module")
def taught(folder: Path, bart: str) -> tuple[ModelVersion, list[Event]]:
    """A published BART that has learnt some of the rows, and the events of its training."""
    generate = {"num_beams": 2, "max_new_tokens": 20}
    data = swaps.data_of(folder, generate=generate)
    config = swaps.config_of(folder, bart, data=data, epochs=16.0, metrics=("perplexity", *WRITTEN))
    events: list[Event] = []
    reference = train(config, events.append, folder / "taught")
    return swaps.published(config, reference, folder / "registry"), events


def judged(events: list[Event]) -> dict[str, float]:
    return [event.metrics for event in events if isinstance(event, Evaluated)][-1]


def verdict(model: Path) -> tuple[float, str]:
    """The proof of a published folder, in this process."""
    task = task_registry.find(swaps.TASK)
    found = plain_scores.scores_of(model, "cpu", task.auto_class, task.activation)
    plain, sample = publication.PlainScores(**found), eval_sample.read(model)
    return publication.compare(sample, plain, publication.BOUNDS["fp32"], is_loss=True)


@pytest.mark.parametrize("kind", FAMILIES)
def test_families_learn_and_publish_what_transformers_scores_and_writes_alike(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {}
    if kind in ("marian", "pegasus"):
        fields["scale_embedding"] = False
    if kind == "marian":
        fields["decoder_vocab_size"] = tiny.VOCABULARY
    base = swaps.base_of(tmp_path, kind, **fields)
    names = ("perplexity", "exact_match", "chrf")
    config = swaps.config_of(folder, base, epochs=3.0, metrics=names)
    events: list[Event] = []
    model = Path(train(config, events.append, tmp_path / "out").path) / "model"
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    assert losses[-1] < 0.8 * losses[0]
    difference, refusal = verdict(model)
    assert refusal == ""
    assert difference < 1e-4
    data = swaps.data_of(folder)
    references = rows.references_of(data.eval, data)
    lines = (folder / "eval.jsonl").read_text(encoding="utf-8").splitlines()
    texts = swaps.plain_texts(model, [json.loads(line)["facts"] for line in lines])
    assert judged(events)["chrf"] == pytest.approx(text_metrics.chrf(texts, references), abs=1e-6)


def test_metrics_equal_those_of_the_libraries_on_what_the_published_model_writes(
    taught: tuple[ModelVersion, list[Event]], folder: Path
) -> None:
    version, events = taught
    lines = (folder / "eval.jsonl").read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    texts = swaps.plain_texts(version.path, [row["facts"] for row in read])
    assert len(set(texts)) > 3
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scores = [
        scorer.score_multi(row["sentence"], text) for row, text in zip(read, texts, strict=True)
    ]
    expected = {
        name: float(np.mean([score[name].fmeasure for score in scores]))
        for name in ("rouge1", "rouge2", "rougeL")
    }
    streams = [
        [row["sentence"][place] if place < len(row["sentence"]) else None for row in read]
        for place in (0, 1)
    ]
    expected["bleu"] = sacrebleu.BLEU().corpus_score(texts, streams).score
    expected["chrf"] = sacrebleu.CHRF().corpus_score(texts, streams).score
    right = [text.strip() in row["sentence"] for row, text in zip(read, texts, strict=True)]
    expected["exact_match"] = sum(right) / len(right)
    found = judged(events)
    assert {name: found[name] for name in WRITTEN} == pytest.approx(expected)
    assert found["rouge1"] > 0.5


@pytest.mark.workers
def test_metrics_are_the_same_on_any_number_of_workers(
    taught: tuple[ModelVersion, list[Event]], folder: Path, tmp_path: Path
) -> None:
    """37 rows: the taught model's, with a learning rate that changes nothing."""
    still = OptimizerSpec(lr=1e-12, weight_decay=0.0)
    data = swaps.data_of(folder, generate={"max_new_tokens": 20})
    values: dict[str, Any] = {"global_batch_size": 12, "micro_batch_size": 2, "epochs": 0.05}
    found = []
    for count in (1, 2, 3):
        each = swaps.config_of(
            folder,
            taught[0].path,
            data=data,
            optimizer=still,
            metrics=("perplexity", *WRITTEN),
            **values,
        )
        events = workers.run(each, count, tmp_path)
        found.append([e["metrics"] for e in events if e["event"] == "Evaluated"][-1])
    assert found[0]["rouge1"] > 0.5
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-6)
        assert {n: other[n] for n in WRITTEN} == {n: found[0][n] for n in WRITTEN}


def test_the_loss_is_that_of_the_library_and_ignores_padding(folder: Path, bart: str) -> None:
    config = swaps.config_of(folder, bart)
    made = build_session(config, load_corpus(config), CPU)
    model, tokens = made.model.eval(), made.corpus.eval
    index = torch.arange(len(tokens))
    batch = made.eval_store.gather(index, int(tokens.lengths.max()))
    found = made.engine.step.objective(model, batch, torch.ones(len(tokens))).item()
    ours = found / tokens.targets.sum()
    labels = batch[TARGET_IDS].long()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    assert ours == pytest.approx(model(**inputs, labels=labels).loss.item(), abs=1e-5)
    assert int((labels == -100).sum()) > 0


def test_generation_settings_and_prefix_are_published(
    taught: tuple[ModelVersion, list[Event]],
) -> None:
    folder = Path(taught[0].path)
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert (settings["num_beams"], settings["max_new_tokens"]) == (2, 20)
    # BART's targets begin with <s>, which its decoder reads behind its start token
    assert (settings["decoder_start_token_id"], settings["forced_bos_token_id"]) == (0, 1)
    assert settings["eos_token_id"] == [2]
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["prefix"] == "name: "
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text2text-generation" in card
    assert "AutoModelForSeq2SeqLM.from_pretrained" in card


def test_targets_end_though_the_tokenizer_adds_no_end(folder: Path, tmp_path: Path) -> None:
    base = swaps.base_of(tmp_path, "t5")
    bare = tiny.tokenizer()
    bare.backend_tokenizer.post_processor = None
    bare.save_pretrained(base)
    for length in (24, 4):
        data = swaps.data_of(folder, max_target_length=length)
        targets = load_corpus(swaps.config_of(folder, base, data=data)).train.ragged[TARGET_IDS]
        lasts = targets.values[targets.offsets[1:] - 1]
        assert set(lasts.tolist()) == {2}
        assert targets.lengths.max() <= length


def test_rows_that_cannot_be_learnt_are_refused(folder: Path, bart: str, tmp_path: Path) -> None:
    def refused(train: str) -> str:
        place = tmp_path / "train.jsonl"
        place.write_text(train, encoding="utf-8")
        (tmp_path / "eval.jsonl").write_text((folder / "eval.jsonl").read_text("utf-8"), "utf-8")
        with pytest.raises(DataError) as caught:
            load_corpus(swaps.config_of(tmp_path, bart))
        return str(caught.value).removeprefix(str(place))

    several = json.dumps({"facts": "a", "sentence": ["b", "c"]})
    assert refused(several).startswith(" row 1: column 'sentence' holds 2 texts, and training")
    empty = json.dumps({"facts": "a", "sentence": []})
    assert refused(empty) == (
        " row 1: column 'sentence' holds an empty list; give one text or more"
    )
    number = json.dumps({"facts": "a", "sentence": {"b": 1}})
    assert "not text of at least one character or a list of such texts" in refused(number)


def test_targets_beyond_the_decoder_are_refused(folder: Path, tmp_path: Path) -> None:
    base = swaps.base_of(tmp_path, "bart", max_position_embeddings=16)
    short = swaps.data_of(folder, max_length=12)
    config = swaps.config_of(folder, base, data=short)
    corpus = load_corpus(config)
    most = int(corpus.eval.ragged[TARGET_IDS].lengths.max())
    if most <= 16:
        pytest.fail("the targets became too short for this test")
    with pytest.raises(ModelError, match=r"writes 16 tokens, .* set data\.max_target_length to 16"):
        build_session(config, corpus, CPU)


def test_a_language_is_only_for_tokenizers_that_write_it(folder: Path, bart: str) -> None:
    data = swaps.data_of(folder, source_language="en_XX", target_language="de_DE")
    with pytest.raises(ModelError, match=r"writes no languages; remove data\.source_language"):
        load_corpus(swaps.config_of(folder, bart, data=data))


def test_a_model_of_several_languages_reads_and_writes_those_of_the_job(
    folder: Path, tmp_path: Path
) -> None:
    """NLLB writes a language's code before each text; generation has to begin with it."""
    base = swaps.base_of(tmp_path, "m2m_100")
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "\u2581", *letters)
    known = {piece: place for place, piece in enumerate(pieces)}
    transformers.NllbTokenizer(vocab=known, merges=[]).save_pretrained(base)
    codes = {"source_language": "eng_Latn", "target_language": "deu_Latn"}
    config = swaps.config_of(folder, base, data=swaps.data_of(folder, **codes))
    model = Path(train(config, lambda _: None, tmp_path / "out").path) / "model"
    assert verdict(model)[1] == ""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    settings = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))
    assert settings["forced_bos_token_id"] == tokenizer.convert_tokens_to_ids("deu_Latn")
    first = eval_sample.read(model)[0].ids[0]
    assert first == tokenizer.convert_tokens_to_ids("eng_Latn")
    unknown = swaps.data_of(folder, **{**codes, "target_language": "tlh"})
    with pytest.raises(ModelError, match="knows no language 'tlh'; write a code"):
        load_corpus(swaps.config_of(folder, base, data=unknown))


def test_an_adapter_learns_and_is_merged(folder: Path, bart: str, tmp_path: Path) -> None:
    lora = LoraSpec(type="lora", r=4, merge=True)
    spec = ModelSpec(base=bart, task=swaps.TASK, adapter=lora)
    config = swaps.config_of(folder, bart, model=spec, epochs=2.0)
    events: list[Event] = []
    model = Path(train(config, events.append, tmp_path / "out").path) / "model"
    assert verdict(model)[1] == ""
    settings = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))
    assert settings["max_new_tokens"] == 24


def test_a_missing_package_is_told_before_training(
    folder: Path, bart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = swaps.config_of(folder, bart, metrics=("bleu",))
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"bleu, which sacrebleu computes.*winnow\[metrics\]"):
        build_session(config, load_corpus(config), CPU)


def test_metrics_of_text_without_matches_are_numbers() -> None:
    found = text_metrics.compute(WRITTEN, ["", "x"], [["a b c d"], ["y", "z"]])
    assert all(math.isfinite(value) and value >= 0 for value in found.values())
    same = text_metrics.compute(WRITTEN, ["a b c d e"], [["q", "a b c d e"]])
    assert same == pytest.approx(
        {**dict.fromkeys(WRITTEN[:3], 1.0), "bleu": 100.0, "chrf": 100.0, "exact_match": 1.0}
    )
