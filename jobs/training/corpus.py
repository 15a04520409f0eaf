"""Both splits of a job, tokenised once for each machine and content."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobs.spec.data import SourceSpec
from jobs.training.config import TrainingConfig
from jobs.training.data import cache, encoding, sources
from jobs.training.data.tokens import TokenSet
from jobs.training.model import base
from jobs.training.task import training_of


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenised rows, and what saving a model needs to know about them."""

    train: TokenSet
    eval: TokenSet
    label_names: tuple[str, ...]
    """Empty for tasks without labels."""
    tokenizer: Any
    end_tokens: tuple[int, ...] = ()
    """Tokens that end an answer; empty where none are generated."""
    sample_texts: Sequence[Sequence[str]] = ()
    """Of the evaluation rows that are kept beside a model; empty where their tokens say it all."""
    digest: str = ""
    """Of the rows as they are tokenised: other rows, settings or tokenizer give another."""
    left_out: int = 0
    """Training rows without a response within the longest length."""


_Key = dict[str, Any]
SplitProgress = Callable[[str, int, int], None]
"""Told the split, and how many of how many rows are tokenised."""


def load_corpus(config: TrainingConfig, progress: SplitProgress | None = None) -> Corpus:
    """Read and tokenise both splits, or take them from the cache."""
    data, training = config.data, training_of(config.model.task)
    tokenizer = base.load_tokenizer(config.model.base)
    training.prepare(tokenizer, data)
    words = tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)
    # taken before first use, which leaves its own settings in the tokenizer
    digest = hashlib.sha256(words.encode()).hexdigest()
    tell = progress or _silent

    def load(split: str, source: SourceSpec, names: Sequence[str]) -> tuple[pa.Table, _Key]:
        key = {**_key(config, source, digest), **training.key(data, names)}

        def encode() -> pa.Table:
            return training.encode(
                source, data, tokenizer, names, lambda done, total: tell(split, done, total)
            )

        return cache.table(key, encode), key

    train, of_train = load("train", data.train, ())
    names = encoding.label_names(train)
    training.check_labels(names, data.train)
    held_back, of_eval = load("eval", data.eval, names)
    token_sets = [encoding.token_set(table, tokenizer) for table in (train, held_back)]
    return Corpus(
        train=token_sets[0],
        eval=token_sets[1],
        label_names=names,
        tokenizer=tokenizer,
        end_tokens=training.end_tokens(train),
        sample_texts=training.sample_texts(held_back),
        digest=_digest(of_train, of_eval),
        left_out=training.left_out(train),
    )


def _key(config: TrainingConfig, source: SourceSpec, tokenizer: str) -> _Key:
    return {
        "source": sources.identity(source),
        "task": config.model.task,
        "tokenizer": tokenizer,
        "max_length": config.data.max_length,
    }


def _digest(*keys: _Key) -> str:
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()


def _silent(split: str, done: int, total: int) -> None:
    """Nobody watches."""
