"""Chat templates of every kind: what is written, and which part of it is the answer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from jobs.errors import DataError
from jobs.tasks.causal_lm.rows import end_tokens_of, prompt_ids
from jobs.training.corpus import load_corpus
from jobs.training.data import chat_template, conversations
from jobs.training.data.table import Table
from tests import tiny
from tests.builders import language_config, language_data

TURN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for message in messages %}" + TURN + "{% endfor %}" + ASK
FORGETTING = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and not loop.last and '</think>' in message.content %}"
    "<|im_start|>assistant\n{{ message.content.split('</think>')[-1].lstrip() }}<|im_end|>\n"
    "{% else %}" + TURN + "{% endif %}{% endfor %}" + ASK
)
"""Leaves out the reasoning of earlier answers, as Qwen3's does."""
OPENING = (
    "{% for message in messages %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Opens a reasoning when it asks, as DeepSeek-R1's does."""
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}" + ASK
)
WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + CHATML
)
"""As Gemma's."""
FORGETFUL = (
    "{% for message in messages %}{% if message.role in ('user', 'assistant') %}"
    + TURN
    + "{% endif %}{% endfor %}"
    + ASK
)
CALLING = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message.tool_calls %}<|im_start|>assistant\n"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% else %}" + TURN + "{% endif %}{% endfor %}" + ASK
)


def tokenizer_with(template: str) -> Any:
    """The tiny tokenizer with a chat template."""
    made = tiny.tokenizer()
    made.chat_template = template
    return made


def said(*contents: str, first: str = "user") -> list[dict[str, Any]]:
    """A conversation of user and assistant in turn."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def trained(messages: Sequence[Any], template: str, **fields: Any) -> list[list[str]]:
    """The parts of each text that are answers."""
    found = chat_template.answers(messages, tokenizer_with(template), **fields)
    return [[text[low:high] for low, high in spans] for text, spans in found]


TWO_TURNS = said("a?", "<think>x</think>one", "b?", "<think>y</think>two")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, [["<think>x</think>one<|im_end|>\n", "<think>y</think>two<|im_end|>\n"]]),
        (FORGETTING, [["<think>x</think>one<|im_end|>\n"], ["<think>y</think>two<|im_end|>\n"]]),
        (MARKED, [["<think>x</think>one<|im_end|>", "<think>y</think>two<|im_end|>"]]),
        (OPENING, [["<think>x</think>one<|im_end|>\n", "<think>y</think>two<|im_end|>\n"]]),
        (WITHOUT_SYSTEM, [["<think>x</think>one<|im_end|>\n", "<think>y</think>two<|im_end|>\n"]]),
    ],
    ids=["chatml", "forgetting", "marked", "opening", "without-system"],
)
def test_every_answer_is_trained_once(template: str, expected: list[list[str]]) -> None:
    assert trained(TWO_TURNS, template) == expected
    last = [expected[-1][-1:]]
    assert trained(TWO_TURNS, template, first=2) == last


def test_an_answer_of_a_rewriting_template_follows_what_an_endpoint_would_write() -> None:
    tokenizer = tokenizer_with(FORGETTING)
    texts = chat_template.answers(TWO_TURNS, tokenizer)
    for (text, [(low, _)]), index in zip(texts, (1, 3), strict=True):
        asked = chat_template.write(TWO_TURNS[:index], tokenizer, ask=True)
        assert text[:low] == asked
    assert "x" not in texts[1][0][: texts[1][1][0][0]]


def test_an_opened_reasoning_is_no_part_of_an_answer_that_has_none() -> None:
    ((text, [(low, _)]),) = chat_template.answers(said("a?", "<thy"), tokenizer_with(OPENING))
    assert text[low:].startswith("<thy")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_rules_stand_before_the_question_where_a_template_refuses_them(role: str) -> None:
    messages = [{"role": role, "content": "Be brief."}, *said("a?", "one")]
    text = chat_template.write(messages, tokenizer_with(WITHOUT_SYSTEM))
    assert text.startswith("<|im_start|>user\nBe brief.\n\na?<|im_end|>")
    assert trained(messages, WITHOUT_SYSTEM) == [["one<|im_end|>\n"]]


def test_a_developer_is_the_system_of_templates_that_know_none() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *said("a?", "one")]
    text = chat_template.write(messages, tokenizer_with(CHATML))
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_template_that_leaves_out_what_somebody_says_is_refused(role: str) -> None:
    messages = [*said("a?", "one"), {"role": role, "content": "42"}, *said("b?", "two")]
    with pytest.raises(DataError, match=f"leaves out message 3 of the role {role}: '42'"):
        chat_template.write(messages, tokenizer_with(FORGETFUL))


def test_contents_that_a_template_changes_are_no_fault() -> None:
    template = CHATML.replace("message.content }}", "message.content | upper }}")
    assert "A?" in chat_template.write(said("a?", "one"), tokenizer_with(template))


def test_tools_and_calls_are_written_by_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    value = [
        {"role": "user", "content": "1 + 1?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "text", "text": "It is "}, "2."]},
    ]
    messages = conversations.messages_of(value)
    assert messages is not None
    assert [message.get("tool_calls") is None for message in messages] == [True, False, True, True]
    tokenizer = tokenizer_with(CALLING)
    text = chat_template.write(messages, tokenizer, tools=tools)
    assert '"name": "add"' in text.split("<|im_start|>user")[0]
    assert trained(messages, CALLING, tools=tools) == [
        [
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>\n',
            "It is 2.<|im_end|>\n",
        ]
    ]


JOINING = CALLING.replace(
    "{{ call.function | tojson }}", "{{ call.function.name + call.function.arguments }}"
)
"""Joins the arguments of a call to its name, as DeepSeek's does."""
THINKING = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{{ message.content.split('</think>')[-1] }}<|im_end|>\n{% else %}"
    + TURN
    + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Leaves out all reasoning, as DeepSeek-R1's does."""
LAST = (
    "{% if messages[0].role == 'system' %}{% set rules = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}{% for message in messages %}"
    "{% if message.role == 'user' %}[INST] {% if loop.last %}{{ rules }}{% endif %}"
    "{{ message.content }}[/INST]{% else %}{{ message.content }}</s>{% endif %}{% endfor %}"
)
"""Writes the rules before the last message, if that is the user's, as Mistral's does."""


def test_arguments_are_written_out_for_templates_that_join_them() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    value = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]
    messages = conversations.messages_of(value)
    assert messages is not None
    assert trained(messages, JOINING) == [['<tool_call>add{"a": 1}</tool_call><|im_end|>\n']]


def test_reasoning_that_a_template_leaves_out_is_told() -> None:
    with pytest.raises(DataError, match="leaves out how the answer '<think>x</think>one' begins"):
        trained(TWO_TURNS, THINKING)
    assert trained(said("a?", "one"), THINKING) == [["one<|im_end|>\n"]]


def test_rules_that_a_template_writes_late_stand_before_the_question() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *said("a?", "one")]
    assert trained(messages, LAST) == [["one</s>"]]
    text = chat_template.write(messages, tokenizer_with(LAST))
    assert text == "[INST] Be brief.\n\na?[/INST]one</s>"
    asked = chat_template.write(messages[:2], tokenizer_with(LAST), ask=True)
    assert text.startswith(asked)


@pytest.mark.parametrize("role", ["developer", "system"])
def test_marked_templates_write_what_an_endpoint_asks_with(role: str) -> None:
    messages = [{"role": role, "content": "Be brief."}, *said("a?", "one")]
    ((text, [(low, high)]),) = chat_template.answers(messages, tokenizer_with(MARKED))
    assert text.startswith(chat_template.write(messages[:2], tokenizer_with(MARKED), ask=True))
    assert text[low:high] == "one<|im_end|>"


def test_nulls_that_fill_columns_are_left_out_and_those_of_json_are_kept() -> None:
    calls = [{"function": {"name": "add", "arguments": {"a": 1, "query": None}}}]
    value = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}]
    messages = conversations.messages_of(value)
    assert messages is not None
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    calls = [{"function": {"name": "add", "arguments": '{"a": null}'}}]
    value = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}]
    messages = conversations.messages_of(value)
    assert messages is not None
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": None}


def test_calls_may_be_empty_or_written_as_json() -> None:
    for calls in ([], "[]", None):
        value = [{"role": "assistant", "content": "a", "tool_calls": calls}]
        assert conversations.messages_of(value) == [{"role": "assistant", "content": "a"}]
    value = [{"role": "assistant", "content": "", "tool_calls": '[{"name": "add"}]'}]
    messages = conversations.messages_of(value)
    assert messages is not None
    assert messages[0]["tool_calls"] == [{"name": "add"}]


@pytest.mark.parametrize(
    ("answer", "end"),
    [("<mask>hello</s>", "</s>"), ("hello<mask>", "<mask>"), ("<mask>hello", None)],
)
def test_the_special_token_that_closes_an_answer_ends_it(answer: str, end: str | None) -> None:
    tokenizer = tiny.tokenizer()
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    known = {tokenizer.eos_token_id}
    expected = known | ({tokenizer.convert_tokens_to_ids(end)} if end else set())
    found = end_tokens_of([(ids, [1] * len(ids))], tokenizer, is_chat=True)
    assert set(found) == expected


@pytest.mark.parametrize(
    "value",
    [
        [],
        [{"role": "assistant", "content": None, "tool_calls": 5}],
        "hello",
        [{"role": "judge", "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
        [{"role": "user", "content": 5}],
        [{"content": "a"}],
    ],
)
def test_what_is_no_list_of_messages_is_told(value: Any) -> None:
    assert conversations.messages_of(value) is None


def test_tools_of_rows_are_lists_of_schemas(tmp_path: Path) -> None:
    table = Table(pa.table({"tools": ['[{"name": "add"}]', "", None]}))
    assert conversations.tools(table, "tools", "x") == [[{"name": "add"}], None, None]
    with pytest.raises(DataError, match="row 1: column 'tools' holds 'add', not a list of tools"):
        conversations.tools(Table(pa.table({"tools": ["add"]})), "tools", "x")


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The same rows for both splits."""
    for split in ("train", "eval"):
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


def chatting(folder: Path, template: str) -> str:
    """A Llama whose tokenizer has a chat template."""
    base = tiny.save(folder / "llama", "llama", transformers.AutoModelForCausalLM)
    tokenizer_with(template).save_pretrained(base)
    return base


def test_a_rewritten_conversation_becomes_a_row_for_each_answer(tmp_path: Path) -> None:
    write_rows(tmp_path, [{"messages": TWO_TURNS}, {"messages": said("c?", "three")}])
    data = language_data(
        tmp_path, prompt=None, response=None, messages="messages", packing=False, max_length=512
    )
    base = chatting(tmp_path, FORGETTING)
    corpus = load_corpus(language_config(tmp_path, base, data=data))
    tokens, found = corpus.train, []
    for row in range(len(tokens)):
        part = slice(tokens.offsets[row], tokens.offsets[row + 1])
        ids, mask = tokens.columns["input_ids"][part], tokens.columns["loss_mask"][part]
        found.append(corpus.tokenizer.decode(ids[mask == 1]))
    assert len(found) == 3
    for text, words in zip(found, ("one", "two", "three"), strict=True):
        assert words in text.replace(" ", "")


def test_tools_of_a_parquet_file_are_trained_with(tmp_path: Path) -> None:
    """Its rows have every field of every message, most of them empty."""
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "1 + 1?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    table = pa.Table.from_pylist([{"messages": messages, "tools": '[{"name": "add"}]'}] * 3)
    for split in ("train", "eval"):
        pq.write_table(table, tmp_path / f"{split}.parquet")
    data = language_data(
        tmp_path, prompt=None, response=None, messages="messages", tools="tools", max_length=512
    )
    sources = {
        split: getattr(data, split).model_copy(update={"path": str(tmp_path / f"{split}.parquet")})
        for split in ("train", "eval")
    }
    config = language_config(
        tmp_path, chatting(tmp_path, CALLING), data=data.model_copy(update=sources)
    )
    corpus = load_corpus(config)
    first = slice(corpus.train.offsets[0], corpus.train.offsets[1])
    ids, mask = (corpus.train.columns[name][first] for name in ("input_ids", "loss_mask"))
    assert "tool_call" in corpus.tokenizer.decode(ids[mask == 1]).replace(" ", "")


def test_cut_rows_are_counted(tmp_path: Path, tiny_llama: str) -> None:
    rows = [{"prompt": "a", "response": " b" * count} for count in (2, 60, 80)]
    write_rows(tmp_path, rows)
    data = language_data(tmp_path, max_length=32)
    corpus = load_corpus(language_config(tmp_path, tiny_llama, data=data))
    assert corpus.cut == (2, 2)
    assert corpus.left_out == (0, 0)


def test_a_prompt_that_begins_with_the_begin_token_begins_once(
    tmp_path: Path, tiny_llama: str
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.backend_tokenizer.post_processor = None
    begin = tokenizer.bos_token_id

    class Beginning:
        """Puts a begin token before each text, as Llama's does."""

        eos_token_id, bos_token_id = tokenizer.eos_token_id, begin

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [begin, *tokenizer(text)["input_ids"]]}

    assert prompt_ids("<s>hello", Beginning()) == prompt_ids("hello", Beginning())
