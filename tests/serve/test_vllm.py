"""What vLLM is asked for and what is read of its answers, with its own classes; no model runs.

`AsyncLLM` needs a GPU: its start, its stream and its memory are not run here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

pytest.importorskip("vllm", reason="vLLM is not installed: what it is asked for is not tested")

from vllm import AsyncEngineArgs
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from serve.tasks.causal_lm import vllm_engine
from serve.tasks.causal_lm.answer import Piece, Settings, TokenLogprob, Writer
from serve.tasks.causal_lm.outside_engine import OutsideJob
from serve.tasks.causal_lm.text_engine import UnsupportedSettingError
from serve.tasks.causal_lm.vllm_engine import engine_fields, sampling_params, take_output
from serve.tasks.causal_lm.vocabulary import Vocabulary, json_grammar, lark_grammar
from tests import tiny

ENDS = frozenset([2])
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


def test_each_setting_is_asked_for() -> None:
    settings = Settings(
        40,
        temperature=0.7,
        top_p=0.9,
        stops=("end",),
        seed=5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias=((7, 2.5), (9, -100.0)),
        top_k=30,
        min_p=0.05,
        min_tokens=4,
        logprobs=3,
    )
    found = sampling_params(settings, 1.2, ENDS)
    assert isinstance(found, SamplingParams)
    assert (found.max_tokens, found.min_tokens, found.n) == (40, 4, 1)
    assert (found.temperature, found.top_p, found.top_k, found.min_p) == (0.7, 0.9, 30, 0.05)
    assert (found.seed, found.logprobs) == (5, 3)
    assert (found.frequency_penalty, found.presence_penalty) == (0.5, -0.5)
    assert (found.repetition_penalty, found.logit_bias) == (1.2, {7: 2.5, 9: -100.0})
    assert (found.stop, found.stop_token_ids, found.ignore_eos) == ([], [2], False)
    assert (found.detokenize, found.output_kind) == (False, RequestOutputKind.DELTA)
    assert found.structured_outputs is None


def test_the_end_is_passed_over_only_where_no_grammar_holds(tokenizer: Any) -> None:
    free = sampling_params(Settings(8, temperature=0.0, ignores_end=True), 1.0, ENDS)
    assert (free.ignore_eos, free.stop_token_ids, free.temperature) == (True, [], 0.0)
    grammar = Vocabulary(tokenizer, ENDS).grammar(json_grammar(PERSON))
    held = sampling_params(Settings(8, ignores_end=True, grammar=grammar), 1.0, ENDS)
    assert (held.ignore_eos, held.stop_token_ids) == (False, [2])


@pytest.mark.parametrize(
    "text",
    [json_grammar(PERSON), json_grammar({"type": "object"}), lark_grammar('start: "a" | %json {}')],
)
def test_vllm_compiles_our_grammars_to_the_same_ones(tokenizer: Any, text: str) -> None:
    from vllm.v1.structured_output.backend_guidance import (
        serialize_guidance_grammar,
        validate_guidance_grammar,
    )
    from vllm.v1.structured_output.request import get_structured_output_key

    own = Vocabulary(tokenizer, ENDS)
    params = sampling_params(Settings(8, grammar=own.grammar(text)), 1.0, ENDS)
    assert params.structured_outputs is not None
    validate_guidance_grammar(params, tokenizer=None)
    theirs = own.grammar(
        serialize_guidance_grammar(*get_structured_output_key(params.structured_outputs))
    )
    written = ['{"age": 4}', '{"age": "4"}', "{}", "a", "b", "[1]"]

    def accepts(grammar: Any, said: str) -> bool:
        matcher = grammar.begin()._matcher
        ids = tokenizer(said, add_special_tokens=False)["input_ids"]
        return bool(matcher.validate_tokens(ids) == len(ids))

    assert [accepts(theirs, each) for each in written] == [
        accepts(own.grammar(text), each) for each in written
    ]


def test_what_vllm_refuses_has_the_name_of_its_field() -> None:
    with pytest.raises(UnsupportedSettingError, match="vLLM refuses it: ") as caught:
        sampling_params(Settings(8, top_p=1.5), 1.0, ENDS)
    assert caught.value.param == "top_p"


def job_of(tokenizer: Any, settings: Settings) -> tuple[OutsideJob, list[Piece]]:
    pieces = list[Piece]()
    writer = Writer(tokenizer, settings, ENDS, pieces.append)
    return OutsideJob(1e18, [1, 5], settings, writer, pieces.append), pieces  # type: ignore[arg-type]


def output(tokens: list[int], finish: str | None = None, logprobs: Any = None) -> RequestOutput:
    made = CompletionOutput(0, "", tokens, None, logprobs, finish_reason=finish)
    return RequestOutput("a", None, [1, 5], None, [made], finish is not None)


def test_deltas_become_pieces_with_probabilities(tokenizer: Any) -> None:
    job, pieces = job_of(tokenizer, Settings(8, logprobs=1))
    first, second = tokenizer(" film indeed", add_special_tokens=False)["input_ids"][:2]
    chances = [{first: Logprob(-2.0, 2), 9: Logprob(-0.5, 1)}, {second: Logprob(-0.1, 1)}]
    assert take_output(job, output([first, second], None, chances)) == 2
    assert not job.is_finished
    assert take_output(job, output([2], "stop", [{2: Logprob(-0.2, 1)}])) == 1
    assert job.is_finished
    job.writer.finish()
    assert "".join(piece.text for piece in pieces) == tokenizer.decode([first, second])
    assert (pieces[-1].finish, pieces[-1].tokens) == ("stop", 3)
    kept = [each for piece in pieces for each in piece.logprobs]
    assert [replace(each, start=0) for each in kept] == [
        TokenLogprob(first, -2.0, ((9, -0.5),)),
        TokenLogprob(second, -0.1, ((second, -0.1),)),
    ]


@pytest.mark.parametrize(("finish", "why"), [("stop", "stop"), ("length", "length")])
def test_an_answer_without_its_end_token_ends_as_vllm_says(
    tokenizer: Any, finish: str, why: str
) -> None:
    job, pieces = job_of(tokenizer, Settings(3))
    take_output(job, output([40, 41, 42][: 3 if finish == "length" else 2], finish))
    assert job.is_finished
    job.writer.finish()
    assert pieces[-1].finish == why


def test_a_stop_text_ends_the_answer_before_vllm_does(tokenizer: Any) -> None:
    job, pieces = job_of(tokenizer, Settings(50, stops=("dull",)))
    take_output(job, output(tokenizer("a dull film", add_special_tokens=False)["input_ids"]))
    assert job.is_finished
    job.writer.finish()
    assert ("".join(piece.text for piece in pieces), pieces[-1].finish) == (" a ", "stop")


def test_the_engine_is_asked_for_by_fields_that_it_has(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "llama", "llama", transformers.AutoModelForCausalLM)
    found = AsyncEngineArgs(**engine_fields(str(folder), "bf16", 100, 300))
    assert (found.max_model_len, found.max_num_seqs, found.dtype) == (100, 300, "bfloat16")
    assert found.structured_outputs_config.backend == "guidance"
    assert set(vllm_engine.DTYPES.values()) == {"bfloat16", "float16", "float32"}
