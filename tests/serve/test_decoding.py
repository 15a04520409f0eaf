"""Answers that are written together: each is the one that the model writes alone."""

import asyncio
import collections
import contextlib
import copy
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from jobs.training.model import location
from serve.batching.client import DeadlineError
from serve.engines.generating import choice, padded_batch
from serve.engines.generating.cached_batch import CachedBatch
from serve.engines.generating.padded_batch import PaddedBatch
from serve.tasks.causal_lm import sampling
from serve.tasks.causal_lm.answer import Piece, Settings, Writer
from serve.tasks.causal_lm.generator import Generator
from tests import tiny
from tests.builders import MINILM

pytestmark = pytest.mark.filterwarnings("ignore")
DECODER = transformers.AutoModelForCausalLM
TOGETHER = (
    "llama",
    "gpt2",
    "mistral",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "gpt_neox",
    "bloom",
    "opt",
)
ALONE = ("mamba", "falcon_h1")
PROMPTS = 200


def model_of(kind: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return DECODER.from_config(tiny.config_of(kind, **fields)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose answers end at different lengths."""
    place = tmp_path_factory.mktemp("model") / "llama"
    torch.manual_seed(3)
    return Path(tiny.save(place, "llama", DECODER, initializer_range=0.2))


def cached(model: Any, *, rows: int, longest: int, adapters: Any) -> tuple[Any, str]:
    """What a GPU chooses, without graphs."""
    options: dict[str, Any] = {"captures": False, "room": 20_000, "adapters": adapters}
    return choice.cached_batch(model, rows=rows, longest=longest, **options), ""


@pytest.fixture(params=[PaddedBatch, CachedBatch])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The batch that writes the answers."""
    if request.param is CachedBatch:
        monkeypatch.setattr(choice, "choose", cached)
    return request.param


@pytest.fixture
def made(folder: Path, kind: Any) -> Iterator[Generator]:
    found = Generator(folder, "AutoModelForCausalLM", "cpu", "fp32", 1, 10**9)
    yield found
    found.close()
    assert found.engine == kind.name


def usual(made: Generator) -> Any:
    """The generator's model in transformers' own attention."""
    model = copy.deepcopy(made._model)
    model.set_attn_implementation("sdpa")
    return model


def prompts_of(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(3, tiny.VOCABULARY) for _ in range(draw.randrange(1, 40))]
        for _ in range(count)
    ]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[Settings, list[int]]:
    """Tokens of each complete answer, by its settings."""
    found: dict[Settings, list[int]] = {}
    finish = Writer.finish

    def seen(self: Any) -> None:
        found[self._settings] = list(self.ids)
        finish(self)

    monkeypatch.setattr(Writer, "finish", seen)
    return found


async def tokens_of(made: Generator, ids: list[int], settings: Settings) -> Piece:
    """The last piece of an answer."""
    pieces = [piece async for piece in made.write(ids, settings, 60)]
    text = "".join(piece.text for piece in pieces)
    return Piece(text, pieces[-1].tokens, pieces[-1].finish)


@pytest.mark.parametrize("kind", [*TOGETHER, *ALONE])
def test_rows_share_a_batch_where_they_do_not_change_each_other(kind: str) -> None:
    assert (not choice.reason_for_one_by_one(model_of(kind))) is (kind in TOGETHER)


def test_positions_that_depend_on_the_longest_row_keep_rows_apart() -> None:
    long = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4}
    long |= {"long_factor": [4.0] * 4, "original_max_position_embeddings": 32}
    model = model_of("llama", rope_parameters=long, max_position_embeddings=128)
    assert "longrope" in choice.reason_for_one_by_one(model)


def test_a_cache_that_mixes_rows_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = PaddedBatch.keep

    def reversed_rows(self: Any, places: list[int]) -> None:
        keep(self, places[::-1])

    monkeypatch.setattr(PaddedBatch, "keep", reversed_rows)
    assert "change each other" in choice.reason_for_one_by_one(model_of("llama"))


def test_greedy_answers_are_those_of_generate_at_every_composition(
    made: Generator,
    kind: Any,
    written: dict[Settings, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts arrive at random moments, and answers have random lengths."""
    widest: list[int] = []
    step = kind.step

    def seen(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        widest.append(len(tokens))
        return step(self, tokens)

    monkeypatch.setattr(kind, "step", seen)
    draw, model = random.Random(1), usual(made)
    asked = [(ids, draw.randrange(1, 30)) for ids in prompts_of(PROMPTS)]

    settings = [Settings(most, temperature=0, seed=n) for n, (_, most) in enumerate(asked)]

    async def one(number: int) -> Piece:
        await asyncio.sleep(draw.random() / 5)
        return await tokens_of(made, asked[number][0], settings[number])

    async def all_of_them() -> list[Piece]:
        return await asyncio.gather(*(one(number) for number in range(PROMPTS)))

    found = asyncio.run(all_of_them())
    assert max(widest) > 8
    assert len(set(widest)) > 5
    for (ids, most), own, piece in zip(asked, settings, found, strict=True):
        given = torch.tensor([ids])
        whole = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
        )[0, len(ids) :]
        assert written[own] == whole.tolist()
        assert piece.tokens == len(whole)
        assert piece.finish == ("stop" if int(whole[-1]) in made._ends else "length")


def test_drawn_tokens_have_the_chances_of_the_model(
    made: Generator, written: dict[Settings, list[int]]
) -> None:
    """The first tokens of many answers that are written together."""
    ids, count = [5, 6, 7], 3000
    with torch.inference_mode():
        logits = usual(made)(torch.tensor([ids])).logits[:, -1].float()
    kept = transformers.TopPLogitsWarper(0.8)(None, logits / 0.7)
    chances = kept.softmax(dim=1)[0].tolist()

    async def many() -> None:
        settings = (Settings(1, temperature=0.7, top_p=0.8, seed=seed) for seed in range(count))
        await asyncio.gather(*(tokens_of(made, ids, own) for own in settings))

    asyncio.run(many())
    found = collections.Counter(tokens[0] for tokens in written.values())
    assert found.total() == count
    for token, chance in enumerate(chances):
        spread = (chance * (1 - chance) / count) ** 0.5
        assert abs(found[token] / count - chance) <= 4.5 * spread, token


def test_tokens_that_rows_draw_together_have_the_chances_of_each(
    made: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without seeds; two kinds of settings and greedy rows stand in one batch."""
    ids, count, finish = [5, 6, 7], 600, Writer.finish
    with torch.inference_mode():
        logits = usual(made)(torch.tensor([ids])).logits[:, -1].float()
    kept = {
        Settings(1, temperature=0.7, top_p=0.8): transformers.TopPLogitsWarper(0.8)(
            None, logits / 0.7
        ),
        Settings(1, temperature=1.5, top_k=20): transformers.TopKLogitsWarper(20)(
            None, logits / 1.5
        ),
        Settings(1, temperature=0): torch.full_like(logits, -torch.inf).index_fill_(
            1, logits.argmax(dim=1), 0.0
        ),
    }
    found = {settings: collections.Counter[int]() for settings in kept}

    def seen(self: Any) -> None:
        found[self._settings][self.ids[0]] += 1
        finish(self)

    monkeypatch.setattr(Writer, "finish", seen)

    async def many() -> None:
        await asyncio.gather(*(tokens_of(made, ids, each) for each in [*kept] * count))

    asyncio.run(many())
    for settings, scores in kept.items():
        assert found[settings].total() == count
        for token, chance in enumerate(scores.softmax(dim=1)[0].tolist()):
            expected, drawn = chance * count, found[settings][token]
            # few draws spread further above their mean than a normal distribution
            assert abs(drawn - expected) <= (4.5 * expected**0.5 + 8) * (chance > 0), token


def test_a_seed_draws_the_same_alone_and_beside_others(made: Generator) -> None:
    settings = Settings(12, temperature=1.0, seed=7)

    async def beside() -> Piece:
        others = [tokens_of(made, ids, Settings(20)) for ids in prompts_of(9)]
        first, *_ = await asyncio.gather(tokens_of(made, [5, 6, 7], settings), *others)
        return first

    alone = asyncio.run(tokens_of(made, [5, 6, 7], settings))
    assert asyncio.run(beside()) == alone
    assert asyncio.run(tokens_of(made, [5, 6, 7], Settings(12, seed=8))) != alone


def test_a_penalty_of_the_model_holds(made: Generator, written: dict[Settings, list[int]]) -> None:
    config = made._model.generation_config
    config.repetition_penalty = 1.5
    try:
        assert not sampling.unusual(config)
        asyncio.run(tokens_of(made, [5, 6, 7], Settings(20, temperature=0)))
        given = torch.tensor([[5, 6, 7]])
        whole = usual(made).generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=20, do_sample=False
        )
    finally:
        config.repetition_penalty = None
    assert list(written.values()) == [whole[0, 3:].tolist()]


def test_settings_that_are_not_obeyed_are_left_to_transformers(
    folder: Path,
    tmp_path: Path,
    written: dict[Settings, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = DECODER.from_pretrained(folder)
    model.generation_config.no_repeat_ngram_size = 2
    model.generation_config.num_beams = 1
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    monkeypatch.setattr(choice, "choose", None)  # not asked
    found = Generator(tmp_path, "AutoModelForCausalLM", "cpu", "fp32", 1, 10**9)
    asyncio.run(tokens_of(found, [5, 6, 7], Settings(30, temperature=0)))
    found.close()
    (ids,) = written.values()
    pairs = list(itertools.pairwise([5, 6, 7, *ids]))
    assert len(set(pairs)) == len(pairs) > 3
    assert sampling.unusual(model.generation_config).endswith("sets no_repeat_ngram_size")


@pytest.mark.parametrize("name", ["keep", "read", "step"])
def test_any_error_of_the_batch_ends_its_answers_and_no_later_ones(
    name: str, made: Generator, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = asyncio.run(tokens_of(made, [5, 6, 7], Settings(9, temperature=0)))

    def failing(*_: Any) -> torch.Tensor:
        raise RuntimeError("out of memory")

    async def two() -> list[Any]:
        asked = (tokens_of(made, [5, 6, 7], Settings(n, temperature=0)) for n in (3, 60))
        return await asyncio.gather(*asked, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, failing)
        assert any(isinstance(each, RuntimeError) for each in asyncio.run(two()))
    assert asyncio.run(tokens_of(made, [5, 6, 7], Settings(9, temperature=0))) == expected
    assert made.load.requests == 0


def test_answers_whose_time_ends_at_once_leave_once(made: Generator) -> None:
    """Their deadlines pass while others are taken out."""

    async def one(number: int) -> Piece:
        pieces = made.write([5, 6, 7], Settings(4000, temperature=0), 0.4 + number * 3e-5)
        return [piece async for piece in pieces][-1]

    async def many() -> list[Any]:
        made._ends = frozenset()
        asked = [one(number) for number in range(64)]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)

    for _ in range(3):
        found = asyncio.run(many())
        assert {type(each) for each in found} <= {Piece, DeadlineError}
    assert made._thread.is_alive()
    patience = time.monotonic() + 20
    while made.load.requests and time.monotonic() < patience:
        time.sleep(0.01)  # who left before the turn is seen at the next step
    assert made.load.requests == 0


def test_an_answer_that_fails_ends_alone(made: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    select = sampling.Sampler.select

    def failing(self: Any, logits: torch.Tensor, ids: tuple[list[int], list[int]]) -> int:
        if self._settings.seed == 1 and len(ids[1]) > 3:
            raise ValueError("no token")
        return select(self, logits, ids)

    monkeypatch.setattr(sampling.Sampler, "select", failing)

    async def both() -> list[Any]:
        asked = (tokens_of(made, [5, 6, 7], Settings(20, seed=seed)) for seed in (0, 1, 2))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, failed, last = asyncio.run(both())
    assert isinstance(failed, ValueError)
    assert first.tokens > 0
    assert last.tokens > 0
    assert made.load.requests == 0


def test_a_row_whose_logits_are_no_numbers_ends_alone(
    made: Generator, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = kind.step

    def spoiled(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        logits = step(self, tokens).clone()
        logits[tokens == 7] = torch.nan
        return logits

    monkeypatch.setattr(kind, "step", spoiled)
    made._ends = frozenset()

    async def both() -> list[Any]:
        forced = Settings(9, temperature=1, logit_bias=((7, 100.0),))
        plain = [Settings(9, temperature=1, logit_bias=((9, 100.0),)), Settings(9, temperature=0)]
        asked = (tokens_of(made, [5, 6], each) for each in (forced, *plain))
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, *others = asyncio.run(both())
    assert isinstance(failed, Exception)
    assert [each.tokens for each in others] == [9, 9]
    assert made.load.requests == 0


def test_shared_rows_whose_logits_are_no_numbers_get_no_token() -> None:
    config = transformers.GenerationConfig()
    kinds = [Settings(1, temperature=0), Settings(1), Settings(1, top_k=3)]
    rows = [sampling.Sampler(each, config, torch.device("cpu")) for each in kinds * 2]
    logits = torch.randn(6, 30)
    logits[3:, 4] = torch.nan
    found = sampling.shared(rows, logits).tolist()
    assert found[3:] == [sampling.NO_TOKEN] * 3
    assert min(found[:3]) >= 0


@pytest.mark.parametrize("ends", ["deadline", "cancel"])
def test_a_prompt_that_is_over_while_it_is_read_gives_its_place_back(
    ends: str, made: Generator, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the clock is looked at."""
    monkeypatch.setattr(kind, "read", lambda *_: ([], torch.empty(0, tiny.VOCABULARY)))

    async def one(number: int) -> None:
        pieces = made.write([5, 6], Settings(9), 0.3 + number * 1e-4 if ends == "deadline" else 60)
        first = asyncio.ensure_future(anext(pieces))
        if ends == "deadline":
            with pytest.raises(DeadlineError):
                await first
            return
        await asyncio.sleep(0.2 + number * 1e-4)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await pieces.aclose()

    async def many() -> None:
        await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(40))), 60)

    asyncio.run(many())
    patience = time.monotonic() + 20
    while (made.load.requests or made.cache_use) and time.monotonic() < patience:
        time.sleep(0.01)
    assert made.load.requests == 0
    assert made.cache_use == 0


def test_who_leaves_frees_its_row_within_a_step(
    made: Generator, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made._ends = frozenset()
    widths: list[int] = []
    step = kind.step

    def seen(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        widths.append(len(tokens))
        return step(self, tokens)

    monkeypatch.setattr(kind, "step", seen)

    async def leave() -> None:
        others = [made.write(ids, Settings(4000, temperature=0), 60) for ids in prompts_of(3)]
        for pieces in others:
            await anext(pieces)
        while widths[-1:] != [3]:
            await asyncio.sleep(0.001)
        for pieces in others[1:]:
            await pieces.aclose()
        count = len(widths)
        while len(widths) < count + 4:
            await asyncio.sleep(0.001)
        assert widths[count + 2] == 1  # one step may have begun before
        await others[0].aclose()

    asyncio.run(leave())


def test_requests_of_all_kinds_leave_nothing_behind(made: Generator) -> None:
    """Clients that leave at any moment, deadlines, stop texts, long prompts and equal ones."""
    draw = random.Random(5)
    alike = [draw.randrange(3, tiny.VOCABULARY) for _ in range(140)]

    async def one(number: int) -> str:
        await asyncio.sleep(draw.random() * 4)
        ids = prompts_of(1, number)[0] if number % 3 else [*alike, number % 300]
        stops = ("e", "in") if number % 5 == 0 else ()
        settings = Settings(draw.randrange(1, 25), temperature=number % 2, stops=stops)
        patience = draw.choice([60.0, 60.0, 60.0, 0.05])
        leaves = draw.choice([None, None, 1, 3])
        try:
            async with contextlib.aclosing(made.write(ids, settings, patience)) as pieces:
                text, count = "", 0
                async for piece in pieces:
                    text, count = text + piece.text, count + 1
                    if count == leaves:
                        return "left"
                assert not any(stop in text for stop in stops)
                return str(piece.finish)
        except DeadlineError:
            return "late"

    async def many() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(600)))

    found = collections.Counter(asyncio.run(asyncio.wait_for(many(), 300)))
    assert found.total() == 600
    assert min(found[end] for end in ("left", "stop", "length")) > 10
    patience = time.monotonic() + 20
    while (made.load.requests or made.cache_use) and time.monotonic() < patience:
        time.sleep(0.01)
    assert made.load.requests == 0
    assert made.cache_use == 0
    assert asyncio.run(tokens_of(made, [5, 6, 7], Settings(3, temperature=0))).tokens == 3


def test_a_padded_batch_holds_no_more_than_its_cache() -> None:
    """Rows wait for room; a prompt that fills it alone is still read."""
    batch = PaddedBatch(model_of("llama"), 2 * (90 + padded_batch.SLACK))
    first = [batch.begin([5] * 60, 90) for _ in range(3)]
    assert [prompt is not None for prompt in first] == [True, True, False]
    with torch.inference_mode():
        batch.read([prompt for prompt in first if prompt])
        assert batch.begin([5], 2) is None
        batch.keep([1])
        assert batch.begin([5], 91) is None
        assert batch.begin([5], 90) is not None
    assert PaddedBatch(model_of("llama"), 10).begin([5] * 60, 90) is not None


def test_answers_that_end_make_the_cache_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_batch, "SLACK", 4)
    batch = PaddedBatch(model_of("llama"), 1000)
    with torch.inference_mode():
        begun = [batch.begin(ids, 40) for ids in ([5] * 30, [6] * 5)]
        batch.read([prompt for prompt in begun if prompt])
        assert batch.width == 30
        batch.keep([1])
    assert batch.width == 5


@pytest.mark.parametrize("kind", ["words", "bytes", "pieces"])
def test_text_in_pieces_is_that_of_all_tokens(kind: str, folder: Path) -> None:
    """Parts of words, of characters, and words that begin with a space."""
    given = "Größe: naïve 日本語 👩‍👩‍👧 says “it is unbelievable”, e.g. 12.5 %!  Two  spaces. End"
    if kind == "words":
        tokenizer = transformers.AutoTokenizer.from_pretrained(location.locate(MINILM))
    elif kind == "bytes":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    else:
        made = tokenizers.SentencePieceBPETokenizer()
        made.train_from_iterator([given, "it is a film, says the man"], vocab_size=90)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer)
    ids = tokenizer(given, add_special_tokens=False)["input_ids"]
    pieces: list[Piece] = []
    writer = Writer(tokenizer, Settings(len(ids)), frozenset(), pieces.append)
    for token in ids:
        writer.put(token)
    writer.finish()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(piece.text for piece in pieces) == whole
    assert len(pieces) > 5
