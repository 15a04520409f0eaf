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
    refuses a system message that begins the conversation, its content stands before the user's.

    Raises:
        DataError: if the template refuses the conversation, or leaves out what somebody says.
    """
    settled = list(conversation)
    if "developer" not in str(tokenizer.get_chat_template(tools=tools)):
        settled = [_as_system(message) for message in settled]
    try:
        text = _render(settled, tokenizer, ask=ask, tools=tools)
    except REFUSALS as error:
        folded = _folded(settled)
        if folded is None:
            raise DataError(_refusal(error)) from None
        settled = folded
        try:
            text = _render(settled, tokenizer, ask=ask, tools=tools)
        except REFUSALS:
            raise DataError(_refusal(error)) from None
    _check_complete(settled, text, tokenizer, ask=ask, tools=tools)
    return text


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
    if GENERATION.search(str(tokenizer.get_chat_template(tools=tools))):
        marked = _marked(conversation, tokenizer, asked, tools)
        if marked:
            return [marked]
    whole = write(conversation, tokenizer, tools=tools)
    spans = [_span(conversation, index, whole, tokenizer, tools) for index in asked]
    if all(spans):
        return [(whole, [span for span in spans if span])]
    found = []
    for index in asked:
        part = conversation[: index + 1]
        text = write(part, tokenizer, tools=tools)
        span = _span(part, index, text, tokenizer, tools)
        if span is None:
            raise DataError(
                "the tokenizer's chat template writes a conversation otherwise once it is answered,"
                " so that answers cannot be told from prompts; use prompt and response columns"
            )
        found.append((text, [span]))
    return found


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

    write(conversation, tokenizer, tools=tools)  # for what it refuses
    with contextlib.suppress(*REFUSALS):
        texts, marks = render_jinja_template(
            conversations=[list(conversation)],
            tools=tools,
            chat_template=tokenizer.get_chat_template(tools=tools),
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
        said = [at for at, each in enumerate(conversation) if each["role"] == "assistant"]
        if len(marks[0]) == len(said):
            of_message = dict(zip(said, marks[0], strict=True))
            return str(texts[0]), [tuple(of_message[index]) for index in asked]
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


def _refusal(error: BaseException) -> str:
    return f"the chat template refuses a conversation: {first_line(error)}"


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
