"""A tokenizer's vocabulary as bytes, and grammars over it that constrain what a model writes."""

import functools
import json
from collections.abc import Iterable
from typing import Any

import llguidance
import numpy as np
import torch

from jobs.errors import first_line

WHITESPACE: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}
"""Between the parts of a JSON value; a bound, as a model could write whitespace for ever."""
SAMPLE = '{"a": [1]}'
"""A text that any vocabulary can write which is to be constrained."""
MAX_GRAMMAR, KEPT_GRAMMARS = 65_536, 32
"""Most characters of a grammar, which takes a second to compile, and grammars that are kept."""
OUTSIDE = float("-inf")
"""Logit of a token that cannot be drawn."""


class UnusableVocabularyError(Exception):
    """A tokenizer whose tokens cannot be told as bytes."""


class GrammarError(Exception):
    """A grammar that is wrong or too complex; the message says why."""


class Vocabulary:
    """The tokens of a tokenizer as bytes."""

    def __init__(self, tokenizer: Any, ends: Iterable[int]) -> None:
        """Args: a fast tokenizer of transformers, and the tokens that end an answer.

        Raises:
            UnusableVocabularyError: if the tokenizer is no fast one, or nothing ends an answer.
        """
        backend, ends = getattr(tokenizer, "backend_tokenizer", None), sorted(ends)
        if backend is None or not ends:
            missing = "an end token" if backend is not None else "a fast tokenizer"
            raise UnusableVocabularyError(f"the model lacks {missing}")
        try:
            self._tokens = llguidance.LLTokenizer(_written(backend), eos_token=ends)
            is_usable = self._tokens.decode_str(self._tokens.tokenize_str(SAMPLE)) == SAMPLE
        except Exception as error:  # noqa: BLE001 - of a library in Rust, of any kind
            raise UnusableVocabularyError(first_line(error)) from None
        if not is_usable:
            raise UnusableVocabularyError("the model's tokenizer cannot write JSON as it is")
        self.grammar = functools.lru_cache(KEPT_GRAMMARS)(self._compiled)
        """Compiles a grammar, or returns one of the last that were compiled.

        Raises GrammarError if it is wrong or too long.
        """

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for, which may be a part of a character."""
        return bytes(self._tokens.decode_bytes([token]))

    def text_of(self, token: int) -> str:
        """The text that a token stands for, with U+FFFD for a part of a character."""
        return self.bytes_of(token).decode(errors="replace")

    def _compiled(self, text: str) -> "Grammar":
        if len(text) > MAX_GRAMMAR:
            raise GrammarError(
                f"it has {len(text)} characters as a grammar; the limit is {MAX_GRAMMAR}"
            )
        return Grammar(llguidance.LLMatcher(self._tokens, text), text)


class Grammar:
    """A compiled grammar, which any number of answers may follow."""

    def __init__(self, matcher: Any, text: str) -> None:
        """Args: llguidance's matcher before the first token, and what it was compiled from."""
        self._begun, self.text = matcher, text
        Matcher(matcher)  # raises GrammarError if it is wrong

    def begin(self) -> "Matcher":
        """Follows a new answer."""
        return Matcher(self._begun.deep_copy())


class Matcher:
    """Follows one answer, token by token, through a grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the grammar lets nothing follow but the answer's end."""
        return bool(self._matcher.is_stopped())

    def constrain(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores (1, vocabulary) in which other tokens than the grammar's are `OUTSIDE`."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = torch.zeros(scores.shape[1], dtype=torch.bool)
        bits = torch.from_numpy(np.unpackbits(packed, bitorder="little")[: len(allowed)])
        allowed[: len(bits)] = bits.bool()
        return scores.masked_fill(~allowed.to(scores.device), OUTSIDE)

    def accept(self, token: int) -> None:
        """Takes the next token of the answer."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(first_line(self._matcher.get_error()))


def json_grammar(schema: Any) -> str:
    """Returns the grammar of JSON texts that a JSON schema allows."""
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=WHITESPACE)
    )


def lark_grammar(rules: str) -> str:
    """Returns the grammar of rules in llguidance's form of Lark, in which `%json` has schemas."""
    return str(llguidance.LLMatcher.grammar_from_lark(rules))


def as_lark(text: str) -> str:
    """Returns the Lark rules of a grammar of `json_grammar` or `lark_grammar`."""
    if not text.startswith("{"):
        return text
    (found,) = json.loads(text)["grammars"]
    return f"start: %json {json.dumps(found['json_schema'])}"


def json_rule(schema: Any) -> str:
    """Returns the right side of a Lark rule for JSON texts that a schema allows."""
    options = {"x-guidance": WHITESPACE} if isinstance(schema, dict) else {}
    return f"%json {json.dumps({**schema, **options} if options else schema)}"


def _written(backend: Any) -> str:
    """Returns a tokenizer of Hugging Face as JSON; it puts no space before a text, and cuts none.

    A grammar's texts follow others.
    """
    made = json.loads(backend.to_str())
    made["truncation"] = made["padding"] = None
    steps = made["pre_tokenizer"] or {}
    for step in (steps, *steps.get("pretokenizers", ())):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = False
    return json.dumps(made)
