"""Rows with places of their own in the cache: they are the model's, wherever they lie."""

import random
from typing import Any

import pytest
import torch
import transformers

from serve.engines.generating import cache_attention, choice, prefixes, token_graphs
from serve.engines.generating.cached_batch import CachedBatch
from serve.engines.generating.prefixes import Prefixes
from serve.engines.generating.spans import Spans
from serve.engines.generating.token_batch import CacheTooSmallError, Prompt
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore")
APART = (
    "llama",
    "gpt2",
    "mistral",
    "gemma3_text",
    "qwen2",
    "qwen3",
    "gpt_neox",
    "opt",
    "phi3",
    "olmo2",
    "starcoder2",
    "cohere",
    "mixtral",
    "smollm3",
)
UNUSUAL = ("gemma2", "bloom", "mamba", "falcon", "gpt_oss", "deepseek_v3")


def model_of(kind: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = tiny.config_of(kind, **fields)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def batch_of(model: Any, room: int = 1000, longest: int = 128) -> CachedBatch:
    return choice.cached_batch(model, rows=8, longest=longest, captures=False, room=room)


def begun(batch: CachedBatch, ids: list[int], most: int) -> Prompt:
    prompt = batch.begin(ids, most)
    assert prompt is not None
    return prompt


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    """The logits behind a text, in the model's own attention."""
    with torch.inference_mode(), cache_attention.attending(model, cache_attention.USUAL):
        logits: torch.Tensor = model(
            torch.tensor([ids], device=model.device), use_cache=False
        ).logits[0, -1]
    return logits


@pytest.mark.parametrize("kind", APART)
def test_rows_apart_are_those_of_the_model(kind: str) -> None:
    model = model_of(kind)
    assert choice.is_right(model, batch_of(model))


@pytest.mark.parametrize("kind", UNUSUAL)
def test_another_attention_is_refused(kind: str) -> None:
    with pytest.raises(cache_attention.UnusualAttentionError):
        batch_of(model_of(kind))


def test_a_mask_that_is_not_of_earlier_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose window the attention is not told."""
    usual = transformers.masking_utils.sliding_window_causal_mask_function
    monkeypatch.setattr(
        transformers.masking_utils,
        "sliding_window_causal_mask_function",
        lambda window: usual(window - 1),
    )
    with pytest.raises(cache_attention.UnusualAttentionError, match="mask"):
        batch_of(model_of("mistral"))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_prompt_is_read_in_pieces_beside_rows_that_grow(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond a window of 16 tokens."""
    monkeypatch.setattr(token_graphs, "READ_TOKENS", (8, 16))
    monkeypatch.setattr("serve.engines.generating.cached_batch.READ_TOKENS", (8, 16))
    model, draw = model_of(kind), random.Random(0)
    batch = batch_of(model)
    short, long = ([draw.randrange(3, 300) for _ in range(size)] for size in (5, 50))
    with torch.inference_mode():
        (first,), logits = batch.read([begun(batch, short, 60)])
        assert first.read == 5
        waiting, steps = [begun(batch, long, 70)], 0
        rows = [short]
        while waiting:
            steps += 1
            token = int(logits[0].argmax())
            logits = batch.step(torch.tensor([token])).clone()
            rows[0] = [*rows[0], token]
            complete, further = batch.read(waiting)
            waiting = [] if complete else waiting
            logits = torch.cat([logits, further])
        assert steps == 4  # 16 tokens each
        for own, found in zip([*rows, long], logits, strict=True):
            torch.testing.assert_close(found, alone(model, own), atol=1e-4, rtol=1e-4)


def test_a_beginning_that_is_in_the_cache_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a row that grows, of a prompt beside it, and of a conversation that goes on."""
    monkeypatch.setattr(prefixes, "LEAST", 8)
    monkeypatch.setattr("serve.engines.generating.cached_batch.LEAST", 8)
    model, draw = model_of("llama"), random.Random(1)
    batch = batch_of(model)
    begin = [draw.randrange(3, 300) for _ in range(20)]
    asked = [[*begin, 7, 8], [*begin, 9], [*begin, 7, 8]]
    with torch.inference_mode():
        waiting = [begun(batch, ids, 40) for ids in asked]
        complete, logits = batch.read(waiting)
        assert complete == waiting[:1]  # the others wait for it
        complete, further = batch.read(waiting[1:])
        assert complete == waiting[1:]
        assert [prompt.start for prompt in waiting] == sorted({each.start for each in waiting})
        for ids, found in zip(asked, torch.cat([logits, further]), strict=True):
            torch.testing.assert_close(found, alone(model, ids), atol=1e-4, rtol=1e-4)
        found = batch.step(torch.tensor([4, 5, 6]))
        for ids, token, own in zip(asked, (4, 5, 6), found, strict=True):
            torch.testing.assert_close(own, alone(model, [*ids, token]), atol=1e-4, rtol=1e-4)
        batch.keep([1, 2])
        longer = begun(batch, [*asked[0], 4, 11, 12], 45)
        assert longer.read == 0  # the row behind it is still there: it is copied
        complete, logits = batch.read([longer])
        torch.testing.assert_close(logits[0], alone(model, longer.ids), atol=1e-4, rtol=1e-4)
        batch.keep([])
        again = begun(batch, [*longer.ids, 13], 45)
        assert again.start == longer.start
        assert again.read == len(longer.ids)
        _, logits = batch.read([again])
        torch.testing.assert_close(logits[0], alone(model, again.ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_a_reading_asks_for_no_position_that_the_model_lacks(kind: str) -> None:
    """What fills it up has places of its own, and learned positions end at 128."""
    model, draw = model_of(kind), random.Random(2)
    batch = batch_of(model)
    with torch.inference_mode():
        for size in (60, 70, 100):
            ids = [draw.randrange(3, 300) for _ in range(size)]
            _, logits = batch.read([begun(batch, ids, 120)])
            torch.testing.assert_close(logits[0], alone(model, ids), atol=1e-4, rtol=1e-4)


def test_a_step_s_logits_stay_while_prompts_are_read() -> None:
    batch = batch_of(model_of("llama"))
    with torch.inference_mode():
        batch.read([begun(batch, [5, 6, 7], 20), begun(batch, [8], 20)])
        found = batch.step(torch.tensor([4, 5]))
        kept = found.clone()
        batch.read([begun(batch, [9] * 100, 110)])
        assert torch.equal(found, kept)
        batch.step(torch.tensor([4, 5, 6]))
        assert not torch.equal(found, kept)  # they are the step's own


def test_a_twin_of_a_long_prompt_waits_also_behind_a_known_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes, "LEAST", 8)
    monkeypatch.setattr("serve.engines.generating.cached_batch.LEAST", 8)
    monkeypatch.setattr(token_graphs, "READ_TOKENS", (8, 16))
    monkeypatch.setattr("serve.engines.generating.cached_batch.READ_TOKENS", (8, 16))
    model, draw = model_of("llama"), random.Random(3)
    batch = batch_of(model)
    system = [draw.randrange(3, 300) for _ in range(12)]
    question = [*system, *(draw.randrange(3, 300) for _ in range(40))]
    with torch.inference_mode():
        batch.read([begun(batch, [*system, 7], 20)])
        waiting = [begun(batch, question, 60) for _ in range(3)]
        left, reads = list(waiting), 0
        while left:
            complete, logits = batch.read(left)
            left, reads = [each for each in left if each not in complete], reads + 1
            for found in logits:
                torch.testing.assert_close(found, alone(model, question), atol=1e-4, rtol=1e-4)
    assert reads == 4  # 40 tokens in pieces of 16, and both twins together
    assert [each.taken_over for each in waiting] == [12, 51, 51]


def test_no_more_rows_than_the_largest_step_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.engines.generating.cached_batch.STEP_ROWS", (1, 2, 4))
    batch = batch_of(model_of("llama"))
    with torch.inference_mode():
        waiting = [begun(batch, [5, 6], 4) for _ in range(3)]
        batch.read(waiting)
        last = begun(batch, [5, 6], 4)
        assert batch.begin([5], 4) is None
        batch.drop([last])
        begun(batch, [5], 4)
        batch.keep([0])
        begun(batch, [5], 4)
        begun(batch, [5], 4)
        assert batch.begin([5], 4) is None


def test_places_that_others_took_are_not_taken_for_a_beginning() -> None:
    known = Prefixes()
    ids = list(range(200))
    known.remember(ids, 50)
    assert known.longest([*ids, 1]) == (50, 200)
    assert known.longest(ids) == (50, 199)
    assert known.longest([*ids[:150], 999]) == (50, 150)
    assert known.longest([*ids[:20], 999, *ids]) == (0, 0)
    known.forget(0, 50)
    known.forget(250, 9)
    assert known.longest([*ids, 1]) == (50, 200)
    known.forget(249, 1)
    assert known.longest([*ids, 1]) == (0, 0)


def test_a_full_cache_makes_prompts_wait_and_refuses_what_never_fits() -> None:
    batch = batch_of(model_of("llama"), room=100)
    first, _ = begun(batch, [5], 60), begun(batch, [5], 40)
    assert batch.use == 1
    assert batch.begin([5], 1) is None
    batch.drop([first])
    assert batch.begin([5], 61) is None
    assert batch.begin([5], 60) is not None
    with pytest.raises(CacheTooSmallError, match="101 tokens: the cache of this replica holds 100"):
        batch.begin([5], 101)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "qwen3"])
def test_captured_steps_are_those_of_the_model(kind: str) -> None:
    """Rows join, grow, end and make room at several widths, beyond a window and a capture."""
    sizes = {"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "n_embd": 256}
    fields = tiny.config_of(kind).to_dict()
    known = {name: size for name, size in sizes.items() if name in fields}
    model = model_of(kind, initializer_range=0.05, **known).to("cuda", torch.bfloat16)
    batch, reason = choice.choose(model, rows=16, longest=128)
    assert reason == ""
    assert isinstance(batch, CachedBatch)
    draw, rows, logits = random.Random(0), list[list[int]](), torch.empty(0, 300, device="cuda")
    with torch.inference_mode():
        for turn in range(60):
            if rows:
                tokens = [draw.randrange(3, 300) for _ in rows]
                rows = [[*ids, token] for ids, token in zip(rows, tokens, strict=True)]
                logits = batch.step(torch.tensor(tokens, device="cuda"))
            if turn % 3 == 0 and len(rows) < 14:
                size = draw.choice([3, 20, 40, 65])
                prompts = [[draw.randrange(3, 300) for _ in range(size)] for _ in range(2)]
                complete, further = batch.read([begun(batch, ids, 120) for ids in prompts])
                assert len(complete) == 2
                rows, logits = [*rows, *prompts], torch.cat([logits, further])
            for ids, found in zip(rows, logits, strict=True):
                expected = alone(model, ids).float()
                assert (found - expected).abs().max() <= 0.05 * expected.abs().max()
            kept = [
                place for place, ids in enumerate(rows) if len(ids) < 70 and draw.random() < 0.97
            ]
            batch.keep(kept)
            rows, logits = [rows[place] for place in kept], logits[kept]


def test_places_are_taken_once_and_all_given_back() -> None:
    draw, spans, held = random.Random(0), Spans(10, 1010), dict[int, int]()
    for _ in range(5000):
        if held and draw.random() < 0.5:
            first = draw.choice(list(held))
            spans.give_back(first, held.pop(first))
        else:
            size = draw.randrange(1, 120)
            first = spans.take(size)
            if first is None:
                assert spans.free < 1000
                continue
            assert first >= 10
            assert first + size <= 1010
            assert all(first + size <= other or other + held[other] <= first for other in held)
            held[first] = size
        assert spans.free == 1000 - sum(held.values())
    for first, size in held.items():
        spans.give_back(first, size)
    assert spans.take(1000) == 10
