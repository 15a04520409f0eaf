"""Both splits of a job, tokenised once on each machine for each content."""

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
    """Tokenised rows of both splits, with the details that are saved with a model."""

    train: TokenSet
    eval: TokenSet
    label_names: tuple[str, ...]
    """Empty for tasks without labels."""
    tokenizer: Any
    end_tokens: tuple[int, ...] = ()
    """Tokens that end an answer; empty for tasks that generate no text."""
    sample_texts: Sequence[Sequence[str]] = ()
    """Texts of the sampled evaluation rows; empty for tasks that keep only their tokens."""
    digest: str = ""
    """SHA-256 of source, settings and tokenizer of both splits; it changes with the rows."""
    left_out: tuple[int, int] = (0, 0)
    """Rows of training and evaluation with nothing to learn within the longest length."""
    cut: tuple[int, int] = (0, 0)
    """Rows of both that are cut off at the longest length, where the task counts them."""


_Key = dict[str, Any]
SplitProgress = Callable[[str, int, int], None]
"""Called with the split, the number of tokenised rows and the number of all rows."""


def load_corpus(config: TrainingConfig, progress: SplitProgress | None = None) -> Corpus:
    """Reads and tokenises both splits, or loads them from the cache.

    Raises:
        DataError: if rows cannot be read or used.
        ModelError: if the tokenizer cannot be loaded or used.
        StorageError: if S3 cannot be reached.
    """
    data, training = config.data, training_of(config.model.task)
    tokenizer = base.load_tokenizer(config.model.base)
    training.prepare(tokenizer, data)
    state = tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)
    # before the tokenizer's first use, which changes its settings
    digest = hashlib.sha256(state.encode()).hexdigest()
    report = progress or _ignore

    def load(split: str, source: SourceSpec, names: Sequence[str]) -> tuple[pa.Table, _Key]:
        key = {**_key(config, source, digest), **training.key(data, names)}

        def encode() -> pa.Table:
            return training.encode(
                source, data, tokenizer, names, lambda done, total: report(split, done, total)
            )

        return cache.table(key, encode), key

    train, train_key = load("train", data.train, ())
    names = encoding.label_names(train)
    training.check_labels(names, data.train)
    eval_rows, eval_key = load("eval", data.eval, names)
    token_sets = [encoding.token_set(table, tokenizer) for table in (train, eval_rows)]
    return Corpus(
        train=token_sets[0],
        eval=token_sets[1],
        label_names=names,
        tokenizer=tokenizer,
        end_tokens=training.end_tokens(train),
        sample_texts=training.sample_texts(eval_rows),
        digest=_digest(train_key, eval_key),
        left_out=(training.left_out(train), training.left_out(eval_rows)),
        cut=(training.cut(train), training.cut(eval_rows)),
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


def _ignore(split: str, done: int, total: int) -> None:
    """Ignores progress."""
