"""Language models: what is learnt, what is packed, and what samples cannot see of each other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from jobs.errors import DataError
from jobs.spec.data import DataSpec
from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import EvalSpec, OptimizerSpec
from jobs.tasks.causal_lm import rows as language
from jobs.tasks.causal_lm.training import TRAINING
from jobs.training.corpus import load_corpus
from jobs.training.data import packing as packs
from jobs.training.data import sources
from jobs.training.data.tokens import TokenSet, TokenStore
from jobs.training.events import Evaluated, Event, Started
from jobs.training.loop import train
from jobs.training.model import base
from tests import tiny
from tests.builders import language_config, language_data

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def trained_text(tokens: TokenSet, row: int, tokenizer: object) -> str:
    """What the loss of a row is on, as text."""
    place = slice(tokens.offsets[row], tokens.offsets[row + 1])
    ids, mask = tokens.columns["input_ids"][place], tokens.columns["loss_mask"][place]
    return tokenizer.decode(ids[mask == 1])  # type: ignore[attr-defined]


def test_only_responses_are_learnt(questions: Path, tiny_llama: str) -> None:
    data = language_data(questions, packing=False)
    corpus = load_corpus(language_config(questions, tiny_llama, data=data))
    texts = {trained_text(corpus.train, row, corpus.tokenizer) for row in range(96)}
    assert texts == {" Yes, it is.</s>", " No, it is not.</s>"}


def test_only_what_the_assistant_says_is_learnt(questions: Path, tiny_llama: str) -> None:
    data = language_data(
        questions, prompt=None, response=None, messages="messages", packing=False, max_length=128
    )
    corpus = load_corpus(language_config(questions, tiny_llama, data=data))
    texts = {trained_text(corpus.train, row, corpus.tokenizer) for row in range(96)}
    # each content begins with a space, and so does what the template puts before it
    assert texts == {"  Yes, it is.</s>", "  No, it is not.</s>"}
    whole = corpus.tokenizer.decode(corpus.train.columns["input_ids"][: corpus.train.offsets[1]])
    assert whole.startswith("<s>")
    assert "user: Is a " in whole
    assert "\nassistant: " in whole


MARKED = (
    "{% for message in messages %}{{ '<s>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<mask>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
MERGING = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}</s>"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Its prompt ends in a space, which belongs to the first word of the answer in a whole text."""


def chatting(folder: Path, template: str | None) -> str:
    """A Llama whose tokenizer has a chat template."""
    base = tiny.save(folder / "llama", "llama", transformers.AutoModelForCausalLM)
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(base)
    return base


def messages_data(questions: Path) -> DataSpec:
    return language_data(
        questions, prompt=None, response=None, messages="messages", packing=False, max_length=128
    )


@pytest.mark.parametrize("template", [None, MARKED, MERGING], ids=["plain", "marked", "merging"])
def test_a_served_prompt_ends_in_the_tokens_that_training_saw(
    template: str | None, questions: Path, tmp_path: Path
) -> None:
    """And all that follows is learnt, from the first word of the answer on."""
    data = messages_data(questions)
    corpus = load_corpus(language_config(questions, chatting(tmp_path, template), data=data))
    prompts = language.prompts(data.train, data, corpus.tokenizer, 8)
    for row, prompt in enumerate(prompts):
        place = slice(corpus.train.offsets[row], corpus.train.offsets[row + 1])
        ids = corpus.train.columns["input_ids"][place].tolist()
        mask = corpus.train.columns["loss_mask"][place].tolist()
        assert ids[: len(prompt)] == prompt
        assert mask == [0] * len(prompt) + [1] * (len(ids) - len(prompt))
        assert " it is" in corpus.tokenizer.decode(ids[len(prompt) :])


def test_a_published_model_stops_where_its_template_ends_a_turn(
    questions: Path, tmp_path: Path
) -> None:
    base = chatting(tmp_path, MARKED)
    config = language_config(questions, base, data=messages_data(questions))
    reference = train(config, lambda _: None, tmp_path / "checkpoints")
    folder = Path(reference.path) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ends = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
    assert ends == tokenizer.convert_tokens_to_ids(["</s>", "<mask>"])


OPENED = [
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Is it?"},
    {"role": "assistant", "content": "Yes, it is."},
]
"""A conversation that the assistant begins."""


def write_opened(folder: Path) -> None:
    for name in ("train", "eval"):
        text = (json.dumps({"messages": OPENED}) + "\n") * 4
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def test_what_an_assistant_opens_with_is_not_learnt(tmp_path: Path, tiny_llama: str) -> None:
    """Nobody asked for it, and so no endpoint can be asked for it."""
    write_opened(tmp_path)
    config = language_config(tmp_path, tiny_llama, data=messages_data(tmp_path))
    corpus = load_corpus(config)
    assert trained_text(corpus.train, 0, corpus.tokenizer) == " Yes, it is.</s>"
    (prompt, *_) = language.prompts(config.data.eval, config.data, corpus.tokenizer, 4)
    assert corpus.tokenizer.decode(prompt).endswith("user: Is it?\nassistant:")


def test_a_template_that_fails_is_told(tmp_path: Path) -> None:
    write_opened(tmp_path)
    for template in ("{% for x %}", "{{ 1 // 0 }}", "{{ messages[0].tools[0].name }}"):
        base = chatting(tmp_path, template)
        with pytest.raises(DataError, match="the chat template refuses a conversation: "):
            load_corpus(language_config(tmp_path, base, data=messages_data(tmp_path)))


def test_a_template_that_cannot_begin_with_the_assistant_is_told(
    tmp_path: Path, questions: Path
) -> None:
    strict = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    base = chatting(tmp_path, strict + MARKED)
    write_opened(tmp_path)
    with pytest.raises(DataError, match="the chat template refuses a conversation: user first"):
        load_corpus(language_config(tmp_path, base, data=messages_data(tmp_path)))


def test_a_conversation_without_an_answer_is_refused(tmp_path: Path, tiny_llama: str) -> None:
    row = '{"messages": [{"role": "user", "content": "hello"}]}\n'
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(row, encoding="utf-8")
    data = language_data(tmp_path, prompt=None, response=None, messages="messages")
    with pytest.raises(DataError, match=r"train\.jsonl row 1: .* one of them the assistant"):
        load_corpus(language_config(tmp_path, tiny_llama, data=data))


def test_rows_whose_response_is_cut_off_are_left_out_and_counted(
    questions: Path, tiny_llama: str
) -> None:
    data = language_data(questions, max_length=22)
    events: list[Event] = []
    train(language_config(questions, tiny_llama, data=data), events.append)
    started = next(event for event in events if isinstance(event, Started))
    assert 0 < started.left_out[0] < 96
    assert 0 < started.left_out[1] < 24


def test_nothing_left_within_the_longest_length_is_an_error(
    questions: Path, tiny_llama: str
) -> None:
    with pytest.raises(DataError, match=r"no row with a response within data\.max_length 8"):
        load_corpus(
            language_config(questions, tiny_llama, data=language_data(questions, max_length=8))
        )


@pytest.mark.parametrize("seed", range(5))
def test_packing_keeps_every_token_and_wastes_little(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 100, size=400)
    rows = packs.assign(lengths, 128)
    assert sorted(sample for row in rows for sample in row) == list(range(400))
    held = [sum(int(lengths[sample]) for sample in row) for row in rows]
    assert max(held) <= 128
    assert len(rows) <= 1.05 * np.ceil(lengths.sum() / 128)


def test_a_training_step_does_not_compute_guesses(questions: Path, tiny_llama: str) -> None:
    """Guesses cost a pass over the vocabulary for each token; only evaluations need them."""
    corpus = load_corpus(language_config(questions, tiny_llama))
    model = base.load_model(ModelSpec(base=tiny_llama, task="causal-lm"), ()).model
    rows = torch.arange(2)
    width = int(corpus.train.lengths[:2].max())
    batch = TokenStore(corpus.train, torch.device("cpu")).gather(rows, width)
    with torch.profiler.profile() as step:
        TRAINING.loss(model, batch, torch.ones(2)).backward()
    with torch.profiler.profile() as evaluation:
        sums = TRAINING.sums(model, batch, torch.ones(2), ())
    used, used_to_judge = ({event.key for event in p.key_averages()} for p in (step, evaluation))
    assert "aten::log_softmax" in used
    assert "aten::argmax" not in used
    assert "aten::argmax" in used_to_judge
    logits = TRAINING.logits(model, batch)[:, :-1]
    is_right = logits.argmax(dim=-1) == batch["input_ids"][:, 1:]
    assert sums[1] == (is_right & (batch["loss_mask"][:, 1:] == 1)).sum()


def test_prompts_are_read_once_for_all_evaluations(
    questions: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = sources.read
    monkeypatch.setattr(
        sources, "read", lambda source: (read.append(source.shown), original(source))[1]
    )
    for max_length in (64, 32):
        data = language_data(questions, max_length=max_length)
        tokenizer = tiny.tokenizer()
        found = [language.prompts(data.eval, data, tokenizer, 3) for _ in range(3)]
        assert found[0] == found[2]
        assert len(found[0]) == 3
    assert read == [data.eval.shown] * 2


def test_packed_samples_do_not_see_each_other(questions: Path, tiny_llama: str) -> None:
    """Each token's loss is the one it has when its sample stands alone."""
    alone = load_corpus(
        language_config(questions, tiny_llama, data=language_data(questions, packing=False))
    )
    packed = packs.pack(alone.train, 128)
    model = base.load_model(ModelSpec(base=tiny_llama, task="causal-lm"), ()).model.eval()

    def response_losses(tokens: TokenSet) -> list[float]:
        store = TokenStore(tokens, torch.device("cpu"))
        found: list[float] = []
        with torch.no_grad():
            for row in range(len(tokens)):
                width = int(tokens.lengths[row])
                batch = store.gather(torch.tensor([row]), width)
                predicted = TRAINING.predict(model, batch)
                found += predicted.losses[predicted.mask == 1].tolist()
        return sorted(found)

    assert len(packed) < len(alone.train) / 2
    assert response_losses(packed) == pytest.approx(response_losses(alone.train), abs=1e-4)


@pytest.mark.parametrize("packing", ["packed", "single"])
def test_a_language_model_learns_to_answer(packing: str, questions: Path, tiny_llama: str) -> None:
    is_packed = packing == "packed"
    epochs = 24 if is_packed else 6
    events: list[Event] = []
    config = language_config(
        questions,
        tiny_llama,
        data=language_data(questions, packing=is_packed),
        epochs=float(epochs),
        eval=EvalSpec(every=Cadence(epochs, "epoch")),
        optimizer=OptimizerSpec(lr=1e-2),
        metrics=("token_accuracy", "perplexity", "distinct_1", "distinct_2", "repetition"),
    )
    train(config, events.append)
    scores = [event for event in events if isinstance(event, Evaluated)][-1].metrics
    assert scores["token_accuracy"] > 0.9
    assert scores["perplexity"] < 1.5
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert 0 < scores["distinct_1"] < scores["distinct_2"] < 1
    assert 0 <= scores["repetition"] < 1
