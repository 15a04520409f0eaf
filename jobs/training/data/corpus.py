"""Both splits of a job, tokenised once for each machine and content."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobs.errors import DataError, shown
from jobs.spec.data import SourceSpec
from jobs.training.config import TrainingConfig
from jobs.training.data import cache, classification, encoding, language, sources
from jobs.training.data.tokens import TokenSet
from jobs.training.model import base


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised rows, and what saving a model needs to know about them."""

    train: TokenSet
    eval: TokenSet
    label_names: tuple[str, ...]
    """Empty for causal-lm."""
    tokenizer: Any
    end_tokens: tuple[int, ...] = ()
    """Tokens that end an answer; empty for classifiers."""
    sample_texts: Sequence[Sequence[str]] = ()
    """Of the evaluation rows that are kept beside a model; empty for causal-lm."""
    digest: str = ""
    """Of the rows as they are tokenised: other rows, settings or tokenizer give another."""
    left_out: int = 0
    """Training rows without a response within the longest length."""


SplitProgress = Callable[[str, int, int], None]
"""Told the split, and how many of how many rows are tokenised."""


def load_corpus(config: TrainingConfig, progress: SplitProgress | None = None) -> Corpus:
    """Read and tokenise both splits, or take them from the cache."""
    tokenizer = base.load_tokenizer(config.model.base)
    language.prepare(tokenizer, config.data)
    load = _causal_lm if config.model.task == "causal-lm" else _classification
    if config.model.task == "text-classification":
        base.settle(tokenizer, model_max_length=config.data.max_length)
    words = tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)
    # taken before first use, which leaves its own settings in the tokenizer
    digest = hashlib.sha256(words.encode()).hexdigest()
    return load(config, _Tokenizer(tokenizer, digest), progress or _silent)


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """A tokenizer and what it is known by in the cache."""

    itself: Any
    digest: str


def _classification(config: TrainingConfig, named: _Tokenizer, progress: SplitProgress) -> Corpus:
    data, tokenizer = config.data, named.itself
    names: tuple[str, ...] = ()

    def make(split: str, source: SourceSpec) -> pa.Table:
        rows = classification.load_rows(source, data)
        return classification.encode(
            rows,
            tokenizer,
            max_length=data.max_length,
            label_names=names or rows.label_names,
            progress=lambda done, total: progress(split, done, total),
        )

    def key(source: SourceSpec) -> dict[str, Any]:
        own = {"columns": data.text_columns, "label": data.label, "names": names}
        return {**_key(config, source, named), **own}

    of_train = key(data.train)
    train = cache.table(of_train, lambda: make("train", data.train))
    names = encoding.label_names(train)
    if len(names) < 2:
        raise DataError(f"{data.train.shown} has only the label {shown(names[0])}; two are needed")
    of_eval = key(data.eval)
    held_back = cache.table(of_eval, lambda: make("eval", data.eval))
    token_sets = [encoding.token_set(table, tokenizer) for table in (train, held_back)]
    return Corpus(
        train=token_sets[0],
        eval=token_sets[1],
        label_names=names,
        tokenizer=tokenizer,
        sample_texts=classification.sample_texts(held_back),
        digest=_digest(of_train, of_eval),
    )


def _causal_lm(config: TrainingConfig, named: _Tokenizer, progress: SplitProgress) -> Corpus:
    data, tokenizer = config.data, named.itself

    columns = {"prompt": data.prompt, "response": data.response, "messages": data.messages}
    keys = {
        split: {**_key(config, source, named), **columns}
        for split, source in (("train", data.train), ("eval", data.eval))
    }

    def load(split: str, source: SourceSpec) -> pa.Table:
        return cache.table(
            keys[split],
            lambda: language.encode(
                source, data, tokenizer, lambda done, total: progress(split, done, total)
            ),
        )

    train, held_back = load("train", data.train), load("eval", data.eval)
    tokens, held_back_tokens = (encoding.token_set(t, tokenizer) for t in (train, held_back))
    return Corpus(
        train=tokens,
        eval=held_back_tokens,
        label_names=(),
        tokenizer=tokenizer,
        end_tokens=language.end_tokens(train),
        digest=_digest(*keys.values()),
        left_out=language.left_out(train),
    )


def _key(config: TrainingConfig, source: SourceSpec, named: _Tokenizer) -> dict[str, Any]:
    return {
        "source": sources.identity(source),
        "task": config.model.task,
        "tokenizer": named.digest,
        "max_length": config.data.max_length,
    }


def _digest(*keys: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()


def _silent(split: str, done: int, total: int) -> None:
    """Nobody watches."""
