"""How a model's chat template writes calls of tools, learned from the template itself."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.errors import DataError
from jobs.training.data import chat_template
from serve.tasks.causal_lm.vocabulary import json_rule

NAME, KEY, VALUE = "probed_tool", "probed_key", "probed value"
IDENTITY, IDENTITIES = "abcdefgh0", "^[a-zA-Z0-9]{9}$"
"""Of a call; some templates refuse others."""
QUESTION = {"role": "user", "content": "What?"}
WORDS = "~"
"""Words of an answer without a call."""
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Answers.",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}},
    },
}


class UnknownFormatError(Exception):
    """A chat template that writes no calls, or not as JSON."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Texts around the JSON of calls in an answer."""

    before: str
    between: str | None
    """None if an answer has one call at most."""
    after: str
    example: Any
    """The JSON of the call of `NAME` with the arguments `{KEY: VALUE}`."""

    @property
    def mark(self) -> str:
        """What tells a call from words; empty if an answer that is JSON is a call."""
        return self.before.strip()

    def rules(self, tools: Mapping[str, Any], special: Mapping[str, int], *, one: bool) -> str:
        """Returns the Lark rules of answers that call tools.

        Args:
            tools: JSON schema of the arguments of each tool that may be called, by its name.
            special: Special tokens of the tokenizer by their texts.
            one: Whether there is one call exactly, instead of one or more.
        """
        calls = [_schema_of(self.example, name, schema) for name, schema in tools.items()]
        names = [f"call_{index}" for index in range(len(calls))]
        start = [_terms(self.before, special), "call"]
        if self.between is not None and not one:
            start.append(f"({_terms(self.between, special)} call)*")
        lines = [f"start: {' '.join([*start, _terms(self.after, special)])}"]
        lines.append(f"call: {' | '.join(names)}")
        lines += [f"{name}: {json_rule(call)}" for name, call in zip(names, calls, strict=True)]
        return "\n".join(lines) + "\n"

    def read(self, answer: str, names: Sequence[str]) -> tuple[str, list[Call]]:
        """Returns the words of an answer and its calls of known tools; all is words if none is."""
        at = answer.find(self.mark) if self.mark else len(answer) - len(answer.lstrip())
        if at < 0:
            return answer, []
        words, rest, calls = answer[:at], answer[at + len(self.mark) :].lstrip(), list[Call]()
        while rest:
            try:
                value, end = json.JSONDecoder().raw_decode(rest)
            except (ValueError, RecursionError):
                break
            call = _call_of(value, self.example)
            if call is None or call.name not in names:
                return answer, []
            calls.append(call)
            rest = rest[end:].lstrip()
            if self.between is None or not rest.startswith(self.between.strip()):
                break
            rest = rest.removeprefix(self.between.strip()).lstrip()
        return (words.rstrip(), calls) if calls else (answer, [])


class CallReader:
    """Reads an answer in pieces: its words are known at once, its calls at its end."""

    def __init__(self, form: ToolFormat, names: Sequence[str]) -> None:
        """Args: the form of calls, and the names of known tools."""
        self._form, self._names = form, names
        self._text, self._sent = "", 0

    def feed(self, text: str) -> str:
        """Takes a piece; returns further words that belong to no call."""
        self._text += text
        words, mark = self._text, self._form.mark
        if mark:
            words = words[: words.find(mark)] if mark in words else _before_part(words, mark)
        elif not words.strip() or words.lstrip().startswith("{"):
            words = ""
        return self._send(words.rstrip())

    def end(self) -> tuple[str, list[Call]]:
        """Returns the rest of the words, and the calls."""
        words, calls = self._form.read(self._text, self._names)
        return self._send(words), calls

    def _send(self, words: str) -> str:
        found = words[self._sent :]
        self._sent = max(self._sent, len(words))
        return found


def learned(tokenizer: Any, ends: Sequence[str]) -> ToolFormat:
    """Returns how the chat template of a tokenizer writes calls; `ends` are texts of end tokens.

    Raises:
        UnknownFormatError: if it writes none, or not as JSON with the tool's name and arguments.
    """
    try:
        asked = chat_template.write([QUESTION], tokenizer, tools=[TOOL])
        words, one = _answered(tokenizer, WORDS, 0), _answered(tokenizer, "", 1)
    except DataError as error:
        raise UnknownFormatError(str(error)) from None
    if NAME not in asked:
        raise UnknownFormatError("the model's chat template knows no tools")
    shared = _shared(words, one)
    found = _calls_in(one, shared)
    if len(found) != 1:
        raise UnknownFormatError("the model's chat template writes no calls of tools as JSON")
    ((begin, end, example),) = found
    tail, turn_end = one[end:], words[len(words) - _shared(words[::-1], one[::-1]) :]
    cuts = [tail.find(text) for text in ends if text in tail]
    after = tail[: min(cuts)] if cuts else tail.removesuffix(turn_end)
    return ToolFormat(one[shared:begin], _between(tokenizer, shared), after, example)


def _between(tokenizer: Any, shared: int) -> str | None:
    """Returns the text between two calls; None if the template writes but one."""
    try:
        two = _answered(tokenizer, "", 2)
    except DataError:
        return None
    found = _calls_in(two, shared)
    return two[found[0][1] : found[1][0]] if len(found) == 2 else None


_CALL = {
    "id": IDENTITY,
    "type": "function",
    "function": {"name": NAME, "arguments": {KEY: VALUE}},
}


def _before_part(words: str, mark: str) -> str:
    """Returns words without a beginning of the mark at their end."""
    longest = min(len(mark) - 1, len(words))
    part = next((n for n in range(longest, 0, -1) if words.endswith(mark[:n])), 0)
    return words[: len(words) - part]


def _answered(tokenizer: Any, words: str, calls: int) -> str:
    """Returns a question as text with an answer of words or of calls."""
    answer: dict[str, Any] = {"role": "assistant", "content": words}
    if calls:
        answer["tool_calls"] = [_CALL] * calls
    return chat_template.write([QUESTION, answer], tokenizer, tools=[TOOL])


def _shared(one: str, other: str) -> int:
    """Returns the number of characters with which both texts begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _calls_in(text: str, position: int) -> list[tuple[int, int, Any]]:
    """Returns where the JSON of each sample call begins and ends behind a position; its value."""
    found = []
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            position = start + 1
            continue
        if _call_of(value, value) is not None and NAME in text[start:end]:
            found.append((start, end, value))
        position = end
    return found


def _call_of(value: Any, example: Any) -> Call | None:
    """Returns the call that a value stands for in the form of an example, if it is one."""
    if not isinstance(example, dict) or not isinstance(value, dict):
        return None
    places = {_place_of(each): key for key, each in example.items()}
    if {"name", "arguments"} <= places.keys():
        name, arguments = value.get(places["name"]), value.get(places["arguments"])
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return None
        if isinstance(name, str) and isinstance(arguments, dict):
            return Call(name, arguments)
        return None
    for key, each in example.items():  # {"type": "function", "function": {…}}
        if isinstance(each, dict) and (call := _call_of(value.get(key), each)):
            return call
    return None


def _place_of(value: Any) -> str:
    """Returns which part of the sample call a value is: its name, its arguments, or another."""
    if value == NAME:
        return "name"
    is_text = isinstance(value, str) and KEY in value
    return "arguments" if is_text or (isinstance(value, dict) and KEY in value) else "other"


def _schema_of(example: Any, name: str, arguments: Any) -> Any:
    """Returns the JSON schema of calls of one tool in the form of an example."""
    place = _place_of(example)
    if place == "name":
        return {"const": name}
    if place == "arguments":
        return {"type": "string"} if isinstance(example, str) else arguments
    if isinstance(example, dict):
        fields = {key: _schema_of(each, name, arguments) for key, each in example.items()}
        closed = {"required": list(fields), "additionalProperties": False}
        return {"type": "object", "properties": fields, **closed}
    is_identity = example == IDENTITY
    return {"type": "string", "pattern": IDENTITIES} if is_identity else {"const": example}


def _terms(text: str, special: Mapping[str, int]) -> str:
    """Returns a text as Lark terms: special tokens by their numbers, and literals between."""
    for token, number in special.items():
        if token in text:
            before, _, behind = text.partition(token)
            return f"{_terms(before, special)} <[{number}]> {_terms(behind, special)}".strip()
    return json.dumps(text, ensure_ascii=False) if text else ""
