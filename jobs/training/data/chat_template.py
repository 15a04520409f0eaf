"""Writes conversations as a tokenizer's chat template says, and finds the answers in the text."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2

from jobs.errors import DataError, first_line, shown
from jobs.training.data import conversations
from jobs.training.data.conversations import Conversation

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""How a conversation is written for a tokenizer that brings no chat template of its own. A prompt
ends before the space, which belongs to the first word of the answer."""

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark with which a template begins what the assistant says."""
REFUSALS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What a chat template raises, by itself or in what it calls."""
INSTRUCTIONS = ("system", "developer")
"""Roles of whoever sets the rules of a conversation."""
OTHER_WORDS = "~"
"""A content that no message has, to see whether a template writes contents at all."""
Span = tuple[int, int]
"""First character of an answer, and the one after its end marks."""


def write(
    conversation: Conversation,
    tokenizer: Any,
    *,
    ask: bool = False,
    tools: Sequence[Any] | None = None,
) -> str:
    """Returns a conversation as text; with `ask`, ready for the assistant's answer.

    A developer's message is the system's where the template knows no developer. Where the template
    refuses or leaves out a system message that begins the conversation, its content stands before
    the user's.

    Raises:
        DataError: if the template refuses the conversation, or leaves out what somebody says.
    """
    return _settled(conversation, tokenizer, ask=ask, tools=tools)[1]


def goes_on(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """Returns the tokens of a text that goes on: without an end token, and begun but once."""
    found = list(ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids)
    begins_twice = found[:2] == [tokenizer.bos_token_id] * 2  # the text has the begin token too
    return found[1:] if begins_twice else found


def answers(
    conversation: Conversation,
    tokenizer: Any,
    *,
    first: int = 0,
    tools: Sequence[Any] | None = None,
) -> list[tuple[str, list[Span]]]:
    """Returns texts of a conversation, each with where the assistant's answers are in it.

    It is one text, unless the template writes earlier answers otherwise than the last one, as some
    leave out earlier reasoning: then each answer has its own, which ends with it. Marks of the
    template say where answers are; without them, it is what follows the text that asks for one.
    Only answers from the message `first` on count.

    Raises:
        DataError: as `write`, or if an answer cannot be told from what stands before it.
    """
    asked = [index for index in conversations.answers(conversation) if index >= first]
    if _has_marks(tokenizer, tools) and (marked := _marked(conversation, tokenizer, asked, tools)):
        return [marked]
    whole = write(conversation, tokenizer, tools=tools)
    spans = [_span(conversation, index, whole, tokenizer, tools) for index in asked]
    if all(spans):
        for index in asked:
            _check_answer(conversation, index, whole, tokenizer, tools)
        return [(whole, [span for span in spans if span])]
    return [_last_answer(conversation[: index + 1], tokenizer, tools) for index in asked]


def _last_answer(
    conversation: Conversation, tokenizer: Any, tools: Sequence[Any] | None
) -> tuple[str, list[Span]]:
    """Returns a conversation that ends with an answer as text, and where this answer is."""
    last = len(conversation) - 1
    text = write(conversation, tokenizer, tools=tools)
    span = _span(conversation, last, text, tokenizer, tools)
    if span is None:
        raise DataError(
            "the tokenizer's chat template writes a conversation otherwise once it is answered, so"
            " that answers cannot be told from prompts; use prompt and response columns"
        )
    _check_answer(conversation, last, text, tokenizer, tools)
    return text, [span]


def _settled(
    conversation: Conversation, tokenizer: Any, *, ask: bool, tools: Sequence[Any] | None
) -> tuple[Conversation, str]:
    """Returns a conversation as the template takes it, and its text; raises DataError."""
    first: DataError | None = None
    for settled in _forms(conversation, tokenizer, tools):
        try:
            text = _render(settled, tokenizer, ask=ask, tools=tools)
            _check_complete(settled, text, tokenizer, ask=ask, tools=tools)
        except DataError as error:
            first = first or error
        except REFUSALS as error:
            reason = f"the chat template refuses a conversation: {first_line(error)}"
            first = first or DataError(reason)
        else:
            return settled, text
    assert first is not None
    raise first


def _forms(
    conversation: Conversation, tokenizer: Any, tools: Sequence[Any] | None
) -> Iterator[Conversation]:
    """Yields a conversation in the forms that templates take, the usual one first."""
    with contextlib.suppress(*REFUSALS):
        if "developer" not in str(tokenizer.get_chat_template(tools=tools)):
            conversation = [_as_system(message) for message in conversation]
    yield conversation
    if any(message.get("tool_calls") for message in conversation):
        yield [_with_written_arguments(message) for message in conversation]
    if folded := _folded(conversation):
        yield folded


def _has_marks(tokenizer: Any, tools: Sequence[Any] | None) -> bool:
    with contextlib.suppress(*REFUSALS):
        return bool(GENERATION.search(str(tokenizer.get_chat_template(tools=tools))))
    return False


def _render(
    conversation: Conversation, tokenizer: Any, *, ask: bool, tools: Sequence[Any] | None
) -> str:
    written = tokenizer.apply_chat_template(
        list(conversation), tokenize=False, add_generation_prompt=ask, tools=tools
    )
    return str(written)


def _span(
    conversation: Conversation,
    index: int,
    text: str,
    tokenizer: Any,
    tools: Sequence[Any] | None,
) -> Span | None:
    """Returns where an answer is in a text; None if the text goes another way before it ends."""
    after = write(conversation[: index + 1], tokenizer, tools=tools)
    asking = write(conversation[:index], tokenizer, ask=True, tools=tools)
    if not text.startswith(asking):
        # what asks for an answer may open a reasoning that an answer without one does not have
        asking = _before_words(conversation[:index], tokenizer, tools)
    if not text.startswith(after) or not text.startswith(asking) or len(asking) >= len(after):
        return None
    return len(asking), len(after)


def _before_words(conversation: Conversation, tokenizer: Any, tools: Sequence[Any] | None) -> str:
    """Returns what a template writes before the first word of any answer to a conversation."""
    one, other = (
        write([*conversation, {"role": "assistant", "content": word}], tokenizer, tools=tools)
        for word in ("A", "B")
    )
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in shared)]


def _marked(
    conversation: Conversation, tokenizer: Any, asked: Sequence[int], tools: Sequence[Any] | None
) -> tuple[str, list[Span]] | None:
    """Returns a text with the template's own marks; None if it does not mark every answer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    settled, text = _settled(conversation, tokenizer, ask=False, tools=tools)
    with contextlib.suppress(*REFUSALS):
        texts, marks = render_jinja_template(
            conversations=[list(settled)],
            tools=tools,
            chat_template=tokenizer.get_chat_template(tools=tools),
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        said = [at for at, each in enumerate(conversation) if each["role"] == "assistant"]
        if texts[0] == text and len(marks[0]) == len(said):
            of_message = dict(zip(said, marks[0], strict=True))
            return text, [tuple(of_message[index]) for index in asked]
    return None


def _as_system(message: Any) -> Any:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _folded(conversation: Conversation) -> list[Any] | None:
    """Returns a conversation with its first system message before the user's first words."""
    if len(conversation) < 2:
        return None
    rules, said, *rest = conversation
    if rules["role"] not in INSTRUCTIONS or said["role"] != "user":
        return None
    return [{**said, "content": f"{rules['content']}\n\n{said['content']}"}, *rest]


def _with_written_arguments(message: Any) -> Any:
    """Returns a message whose calls have their arguments as JSON, which some templates join."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_written(call) for call in message["tool_calls"]]}


def _written(call: Any) -> Any:
    function = call.get("function")
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
        return call
    arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _check_answer(
    conversation: Conversation,
    index: int,
    text: str,
    tokenizer: Any,
    tools: Sequence[Any] | None,
) -> None:
    """Raises DataError where the template leaves out a part of an answer that is trained."""
    message = conversation[index]
    words = message["content"].strip()
    if words in text:
        return
    changed = [*conversation]
    changed[index] = {**message, "content": OTHER_WORDS + message["content"]}
    try:
        other = write(changed, tokenizer, tools=tools)
    except DataError:
        return  # it reads the content, and writes it in its own way
    if other == text:
        raise DataError(
            f"the chat template leaves out how the answer {shown(words)} begins; set another"
            " chat_template in the base's tokenizer, or remove that part"
        )


def _check_complete(
    conversation: Conversation, text: str, tokenizer: Any, *, ask: bool, tools: Any
) -> None:
    """Raises DataError where the template leaves out what another than the assistant says."""
    for index, message in _not_in(conversation, text):
        changed = [*conversation]
        changed[index] = {**message, "content": message["content"] + OTHER_WORDS}
        try:
            other = _render(changed, tokenizer, ask=ask, tools=tools)
        except REFUSALS:
            continue  # it reads the content, and writes it in its own way
        if other == text:
            raise DataError(
                f"the chat template leaves out message {index + 1} of the role"
                f" {message['role']}: {shown(message['content'])}; remove such messages, or set"
                " another chat_template in the base's tokenizer"
            )


def _not_in(conversation: Conversation, text: str) -> Iterator[tuple[int, Any]]:
    """Yields the messages of others than the assistant whose words do not stand in a text."""
    for index, message in enumerate(conversation):
        words = (message.get("content") or "").strip()
        is_written = words in text or json.dumps(words)[1:-1] in text
        if message["role"] != "assistant" and not is_written:
            yield index, message
