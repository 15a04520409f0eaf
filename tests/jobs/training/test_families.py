"""Models beside BERT and Llama: right in every batch, packed or not, and once published."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from jobs.errors import ModelError
from jobs.spec import task_registry
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.training import eval_sample, plain_scores, publication
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.events import Evaluated, Event, Proven, Started
from jobs.training.loop import train
from jobs.training.model.base import settle
from jobs.training.session import build_session
from jobs.training.world import World
from tests import tiny
from tests.builders import language_config, language_data, training_config

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = World(0, 1, torch.device("cpu"))
DECODERS = ("llama", "gemma2", "gemma3_text", "mistral", "gpt2", "gpt_neox", "qwen2_moe")
CLASSIFIERS = ("roberta", "xlnet", "t5", "bart", "gpt2", "llama", "deberta-v2", "modernbert")


def decoder(folder: Path, kind: str, **fields: Any) -> str:
    return tiny.save(folder / kind, kind, transformers.AutoModelForCausalLM, **fields)


def answering(questions: Path, base: str, **fields: Any) -> TrainingConfig:
    """Rows of up to 64 tokens, more than the tiny models' windows of 16."""
    data = language_data(questions, max_length=64, **fields)
    return language_config(questions, base, data=data)


def classifying(reviews: Path, base: str, **fields: Any) -> TrainingConfig:
    model = ModelSpec(base=base, **fields)
    rate = OptimizerSpec(lr=1e-2)
    return training_config(reviews, base, model=model, epochs=4.0, optimizer=rate)


def trained(config: TrainingConfig, folder: Path) -> tuple[list[Event], Path]:
    """Events of a run, and the folder of its model."""
    events: list[Event] = []
    reference = train(config, events.append, folder)
    return events, Path(reference.path) / "model"


def verdict(folder: Path) -> tuple[float, str]:
    """Largest difference, and why the model must not be published: the proof in this process."""
    rows = eval_sample.read(folder)
    task = task_registry.find("causal-lm" if rows[0].trained else "text-classification")
    found = plain_scores.scores_of(folder, "cpu", task.auto_class, task.activation)
    bound, is_loss = publication.BOUNDS["fp32"], task.activation == "token-loss"
    return publication.compare(rows, publication.PlainScores(**found), bound, is_loss=is_loss)


def the(kind: Any, events: list[Event]) -> Any:
    return [event for event in events if isinstance(event, kind)][-1]


@pytest.mark.parametrize("kind", DECODERS)
def test_packed_samples_have_the_losses_that_they_have_alone(
    kind: str, questions: Path, tmp_path: Path
) -> None:
    base = decoder(tmp_path, kind)
    packed = build_session(answering(questions, base), load_corpus(answering(questions, base)), CPU)
    assert packed.remarks == ()
    single = answering(questions, base, packing=False)
    alone = build_session(single, load_corpus(single), CPU)
    assert len(packed.corpus.train) < len(alone.corpus.train)
    assert losses(packed) == pytest.approx(losses(alone), abs=1e-4)


def losses(session: Any) -> list[float]:
    """Of each trained token, sorted."""
    tokens, model = session.corpus.train, session.model.eval()
    store, found = type(session.eval_store)(tokens, CPU.device), list[float]()
    with torch.no_grad():
        for row, length in enumerate(tokens.lengths):
            batch = store.gather(torch.tensor([row]), int(length) + 4)
            predicted = session.training.predict(model, batch)
            found += predicted.losses[predicted.mask == 1].tolist()
    return sorted(found)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("bloom", {}),
        ("falcon", {"alibi": True}),
        ("mamba", {}),
        ("opt", {}),
        ("recurrent_gemma", {}),
    ],
)
def test_models_that_mix_samples_of_a_row_are_trained_on_single_rows(
    kind: str, fields: dict[str, Any], questions: Path, tmp_path: Path
) -> None:
    events: list[Event] = []
    train(answering(questions, decoder(tmp_path, kind, **fields)), events.append)
    started = the(Started, events)
    (remark,) = started.remarks
    assert remark.startswith("rows are not packed: ")
    assert started.train_rows == 96


def test_a_library_that_mixes_samples_is_found(
    questions: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: transformers takes a packed row for one sample."""
    monkeypatch.setattr(
        transformers.masking_utils, "find_packed_sequence_indices", lambda position_ids: None
    )
    config = answering(questions, tiny_llama)
    session = build_session(config, load_corpus(config), CPU)
    assert session.remarks == (
        "rows are not packed: samples that share a row see each other in this model",
    )


def test_an_encoder_is_no_language_model(questions: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bert lets a token see later ones, as encoders do"):
        train(answering(questions, decoder(tmp_path, "bert")), lambda _: None)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_published_classifier_scores_as_in_training(
    kind: str, reviews: Path, tmp_path: Path
) -> None:
    """Padded on the side that its model reads right, with the tokens that training used."""
    base = tiny.save(tmp_path / kind, kind, transformers.AutoModel)
    events, folder = trained(classifying(reviews, base), tmp_path / "checkpoints")
    assert verdict(folder) == (pytest.approx(0, abs=1e-5), "")
    assert len(eval_sample.read(folder)) == 50
    assert the(Evaluated, events).metrics["accuracy"] > 0.9
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.padding_side == ("left" if kind == "xlnet" else "right")
    assert tokenizer.model_max_length == 32


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
@pytest.mark.parametrize("kind", ["deberta-v2", "xlnet", "bert", "distilbert"])
def test_an_adapter_keeps_what_its_base_lacks(
    kind: str, *, merge: bool, reviews: Path, tmp_path: Path
) -> None:
    """A pooler, a summary, or a layer before the head that peft cannot adapt and save besides."""
    auto = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModel
    base = tiny.save(tmp_path / kind, kind, auto)
    lora = LoraSpec(type="lora", r=4, alpha=8, dropout=0.0, merge=merge)
    _, folder = trained(classifying(reviews, base, adapter=lora), tmp_path / "checkpoints")
    assert verdict(folder) == (pytest.approx(0, abs=1e-5), "")


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
def test_an_adapted_output_layer_leaves_the_embedding_as_it_was(
    *, merge: bool, questions: Path, tmp_path: Path
) -> None:
    base = decoder(tmp_path, "llama", tie_word_embeddings=True)
    lora = LoraSpec(type="lora", target_modules=("q_proj", "lm_head"), dropout=0.0, merge=merge)
    config = answering(questions, base)
    model = config.model.model_copy(update={"adapter": lora})
    config = dataclasses.replace(config, model=model, optimizer=OptimizerSpec(lr=2e-2), epochs=3.0)
    _, folder = trained(config, tmp_path / "checkpoints")
    assert verdict(folder) == (pytest.approx(0, abs=1e-3), "")


def test_an_output_layer_that_the_base_lacks_is_trained_apart_from_the_embedding(
    questions: Path, tmp_path: Path
) -> None:
    """Although its base ties the two, and a bias of it to another."""
    base = tiny.save(tmp_path / "bert", "bert", transformers.AutoModel, is_decoder=True)
    lora = LoraSpec(type="lora", r=4, alpha=8, dropout=0.0, merge=False)
    config = answering(questions, base)
    model = config.model.model_copy(update={"adapter": lora})
    config = dataclasses.replace(config, model=model, optimizer=OptimizerSpec(lr=2e-2), epochs=2.0)
    _, folder = trained(config, tmp_path / "checkpoints")
    assert verdict(folder) == (pytest.approx(0, abs=1e-3), "")


def test_a_trained_head_follows_its_labels(reviews: Path, tmp_path: Path) -> None:
    """Moved where the base has the same labels in another order, drawn anew where it has others."""
    base = tiny.save(tmp_path / "roberta", "roberta", transformers.AutoModel)
    events, folder = trained(classifying(reviews, base), tmp_path / "first")
    best = the(Evaluated, events).metrics["accuracy"]
    assert best > 0.9
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    swapped = tmp_path / "swapped"
    for weight in (model.classifier.out_proj.weight, model.classifier.out_proj.bias):
        weight.data = weight.data.flip(0)
    model.config.id2label = {0: "positive", 1: "negative"}
    model.config.label2id = {"positive": 0, "negative": 1}
    model.save_pretrained(swapped)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(swapped)
    frozen = OptimizerSpec(lr=1e-9)
    still = dataclasses.replace(classifying(reviews, str(swapped)), optimizer=frozen)
    events, _ = trained(still, tmp_path / "second")
    assert the(Evaluated, events).metrics["accuracy"] == best
    assert the(Started, events).remarks == (
        "the base is a classifier for the same labels, so its head is kept",
    )
    auto = transformers.AutoModelForSequenceClassification
    wide = tiny.save(tmp_path / "wide", "bert", auto, num_labels=5)
    events, folder = trained(classifying(reviews, wide), tmp_path / "third")
    (remark,) = the(Started, events).remarks
    assert remark.startswith("the base is a classifier for other labels (")
    assert verdict(folder) == (pytest.approx(0, abs=1e-5), "")


def test_a_base_without_a_tokenizer_or_with_a_wrong_one_is_refused(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    base = tiny.save(tmp_path / "bert", "bert", transformers.AutoModel)
    transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(base)
    with pytest.raises(ModelError, match="the model has 300 embeddings; they do not belong"):
        train(classifying(reviews, base), lambda _: None)
    for path in (tmp_path / "bert").glob("*token*"):
        path.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        train(classifying(reviews, base), lambda _: None)


def test_rows_longer_than_the_model_are_refused(reviews: Path, tmp_path: Path) -> None:
    base = tiny.save(
        tmp_path / "roberta", "roberta", transformers.AutoModel, max_position_embeddings=13
    )
    with pytest.raises(ModelError, match=r"takes 12 tokens, and the longest row has 1[3-9]; set"):
        train(classifying(reviews, base), lambda _: None)


@pytest.mark.parametrize(
    "kind", ["bert", "t5", "albert", "xlnet", "modernbert", "gpt_neox", "llama"]
)
def test_dropout_is_set_everywhere(kind: str, reviews: Path, tmp_path: Path) -> None:
    base = tiny.save(tmp_path / kind, kind, transformers.AutoModel)
    config = classifying(reviews, base, dropout=0.37)
    model = build_session(config, load_corpus(config), CPU).model
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert {layer.p for layer in layers} <= {0.37}
    text = model.config.get_text_config()
    drops = {k: v for k, v in vars(text).items() if "drop" in k and isinstance(v, float)}
    assert layers or drops
    assert set(drops.values()) <= {0.37}


@pytest.fixture(scope="module")
def passed(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained model that pads on the left."""
    base = tiny.save(tmp_path_factory.mktemp("xlnet"), "xlnet", transformers.AutoModel)
    folder = tmp_path_factory.mktemp("checkpoints")
    events: list[Event] = []
    reference = train(classifying(reviews, base), events.append, folder, proves=True)
    proof = the(Proven, events)
    assert (proof.refusal, proof.rows) == ("", 50)
    assert 0 < proof.seconds < publication.TIMEOUT_S
    return Path(reference.path) / "model"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("head", "a score of a row alone is"),
        ("labels", "a score of a row "),
        ("tokens", "its tokenizer makes other tokens of 50 of 50 texts"),
        ("padding", "a score of a row beside others is"),
    ],
)
def test_a_saved_model_that_scores_otherwise_is_not_to_be_published(
    fault: str, words: str, passed: Path, tmp_path: Path
) -> None:
    """Planted faults: each in the files of a model that passed."""
    folder = shutil.copytree(passed, tmp_path / "model")
    if fault in ("head", "labels"):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        weight = model.logits_proj.weight.data
        model.logits_proj.weight.data = weight.flip(0) if fault == "labels" else weight * 1.2
        model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if fault == "tokens":
        tokenizer.backend_tokenizer.normalizer = tiny.tokenizers.normalizers.Prepend("x")
        tokenizer.save_pretrained(folder)
    if fault == "padding":
        settle(tokenizer, padding_side="right")
        tokenizer.save_pretrained(folder)
    assert verdict(folder)[1].startswith(words)


def test_a_saved_model_that_cannot_be_loaded_is_not_to_be_published(
    passed: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(passed, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with publication.Prover(task_registry.find("text-classification"), "cpu") as prover:
        proof = prover.prove(folder, "fp32", lambda _: None)
    assert proof is not None
    assert proof.refusal.startswith("plain transformers cannot load or run it: ")


def scorers() -> list[psutil.Process]:
    """Processes of this one that score or wait to score a model."""
    script = str(publication.SCRIPT)
    return [each for each in psutil.Process().children() if script in each.cmdline()]


def test_a_process_that_begins_before_there_is_a_model_scores_it_or_ends(passed: Path) -> None:
    with publication.Prover(task_registry.find("text-classification"), "cpu") as prover:
        prover.begin()
        prover.begin()
        (waiting,) = scorers()
        proof = prover.prove(passed, "fp32", lambda _: None)
        assert proof is not None
        assert (proof.refusal, proof.rows) == ("", 50)
        assert not waiting.is_running()
        prover.begin()
        (unused,) = scorers()
    assert not unused.is_running()


def test_a_budget_that_ends_a_run_leaves_a_merged_model(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    lora = LoraSpec(type="lora", r=4, alpha=8, merge=True)
    config = classifying(reviews, tiny_model, adapter=lora)
    config = dataclasses.replace(config, epochs=200.0, stop_after_s=0.2)
    _, folder = trained(config, tmp_path / "checkpoints")
    assert (folder / "model.safetensors").exists()
    assert not (folder / "adapter_config.json").exists()
    assert verdict(folder) == (pytest.approx(0, abs=1e-3), "")
