"""Checks on a few rows, before the first step, that padding and packing do not change logits.

A row must get the same logits with and without padding. A token of a language model may depend only
on earlier tokens of its own sample, whether the sample is alone in its row or packed with others.
"""

import dataclasses
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.errors import ModelError
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus
from jobs.training.data import packing
from jobs.training.data.batches import WIDTH_MULTIPLE
from jobs.training.data.tokens import (
    INPUT_IDS,
    LOSS_MASK,
    TARGET_IDS,
    TokenSet,
)
from jobs.training.logits_check import LogitsCheck, Tokens, are_near
from jobs.training.model import packed_attention
from jobs.training.model.adapter import unwrapped
from jobs.training.model.base import settle, token_embeddings
from jobs.training.model.library import as_model_error
from jobs.training.model.positions import learned_positions
from jobs.training.task import training_of
from jobs.training.world import World

PADDED_ROWS, PADDING = 4, 8
"""Number of rows that are padded together, and padding tokens of the longest of them."""
LENGTHS = (17, 24, 20)
"""Tokens of the samples in a packed row; the first is longer if the model has a window."""
BEYOND_WINDOW = 16
"""Tokens by which the longest sample exceeds the model's attention window."""
WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Names of the width of local attention in configurations of transformers."""


def proven(corpus: Corpus, model: Any, config: TrainingConfig, world: World) -> tuple[Corpus, str]:
    """Returns the corpus in the layout that the model supports, and a remark on a deviation.

    Rows are padded on the right, or on the left if the model needs it. Rows of causal models are
    packed if the job asks for it and the model separates samples; otherwise the remark says why
    not.

    Raises:
        ModelError: if rows are longer than the model's positions or hold unknown tokens, if padding
            changes scores on both sides, or if a token depends on later tokens.
    """
    corpus = _with_accepted_columns(corpus, model, training_of(config.model.task).columns)
    _check_tokens(corpus, model, config)
    model.eval()
    try:
        with torch.no_grad():
            check = _check_packing if training_of(config.model.task).is_causal else _check_padding
            with as_model_error("cannot score a row of the training data"):
                result = check(LogitsCheck(model, config, world.device), corpus)
    except ModelError as error:
        result = _CheckResult(str(error))
    finally:
        model.train()
    result = world.gather(result)[0]  # every worker must use the same layout
    if result.error:
        raise ModelError(f"{config.model.base} {result.error}")
    if result.pads_left:
        settle(corpus.tokenizer, padding_side="left")
        train, eval_rows = (
            dataclasses.replace(tokens, pads_left=True) for tokens in (corpus.train, corpus.eval)
        )
        return dataclasses.replace(corpus, train=train, eval=eval_rows), ""
    settle(corpus.tokenizer, padding_side="right")
    if not config.data.is_packed:
        return corpus, ""
    if result.refusal:
        return corpus, f"rows are not packed: {result.refusal}"
    packed = packing.pack(corpus.train, config.data.max_length)
    if result.attends_by_samples:
        packed = _attended_by_samples(packed, model, config.micro_batch_size)
    return dataclasses.replace(corpus, train=packed), ""


def _attended_by_samples(packed: TokenSet, model: Any, rows: int) -> TokenSet:
    """Returns packed rows whose samples the model attends apart, if that is faster than a mask."""
    most = packing.most_samples(packed)
    if most > packing.MOST_SAMPLES:
        return packed
    packed_attention.use(model)
    return dataclasses.replace(packed, sample_slots=rows * most)


@dataclasses.dataclass(frozen=True, slots=True)
class _CheckResult:
    error: str = ""
    """Why the model cannot be trained; empty if it can."""
    refusal: str = ""
    """Why samples must not be packed; empty if they may."""
    pads_left: bool = False
    attends_by_samples: bool = False
    """Whether packed samples may be attended apart."""


def _with_accepted_columns(corpus: Corpus, model: Any, own: Sequence[str]) -> Corpus:
    """Removes token columns that neither the model accepts nor the task owns, as token types."""
    taken = {*inspect.signature(unwrapped(model).forward).parameters, LOSS_MASK, *own}
    tokenizer = corpus.tokenizer
    names = [name for name in tokenizer.model_input_names if name in taken]
    settle(tokenizer, model_input_names=names)

    def kept(tokens: TokenSet) -> TokenSet:
        columns = {name: column for name, column in tokens.columns.items() if name in taken}
        return dataclasses.replace(tokens, columns=columns)

    return dataclasses.replace(corpus, train=kept(corpus.train), eval=kept(corpus.eval))


def _check_tokens(corpus: Corpus, model: Any, config: TrainingConfig) -> None:
    embeddings = token_embeddings(model)
    known = math.inf if embeddings is None else embeddings.shape[0]
    largest = max(int(ids.max()) for each in (corpus.train, corpus.eval) for ids in _ids_of(each))
    if largest >= known:
        raise ModelError(_unknown_token(largest, config, known))
    _check_targets(corpus, model, config, known)
    longest = max(int(tokens.lengths.max()) for tokens in (corpus.train, corpus.eval))
    room = _room(corpus.train, model)
    if longest > room:
        raise ModelError(
            f"{config.model.base} takes {room} tokens, and the longest row has {longest}; set"
            f" data.max_length to {room} or less"
        )


def _ids_of(tokens: TokenSet) -> list[NDArray[Any]]:
    """Returns the tokens of each sequence of all rows."""
    further = [each.values for name, each in tokens.ragged.items() if name.endswith(INPUT_IDS)]
    return [tokens.columns[INPUT_IDS], *further]


def _room(tokens: TokenSet, model: Any) -> float:
    """Returns the tokens of a row that the model takes; targets are read by the decoder alone."""
    bare = unwrapped(model)
    return learned_positions(bare.get_encoder() if TARGET_IDS in tokens.ragged else bare)


def _check_targets(corpus: Corpus, model: Any, config: TrainingConfig, known: float) -> None:
    """Raises ModelError for targets that the decoder of a model does not take."""
    for targets in (tokens.ragged.get(TARGET_IDS) for tokens in (corpus.train, corpus.eval)):
        if targets is None:
            continue
        room = learned_positions(unwrapped(model).get_decoder())
        largest = int(targets.values.max())
        if largest >= known:
            raise ModelError(_unknown_token(largest, config, known))
        if targets.width > room:
            # the width of a batch is a multiple of so many tokens
            most = int(room) // WIDTH_MULTIPLE * WIDTH_MULTIPLE
            raise ModelError(
                f"{config.model.base} writes {int(room)} tokens, and the longest target has"
                f" {int(targets.lengths.max())}; set data.max_target_length to {most} or less"
            )


def _unknown_token(token: int, config: TrainingConfig, known: float) -> str:
    return (
        f"the tokenizer of {config.model.base} gives token {token}, and the model has {int(known)}"
        " embeddings; they do not belong together, so save the model with its own tokenizer"
    )


def _check_padding(logits_check: LogitsCheck, corpus: Corpus) -> _CheckResult:
    """Determines the side on which rows may be padded, with rows of different lengths."""
    train = corpus.train.first_sequence
    lengths = train.lengths
    order = np.argsort(lengths, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, PADDED_ROWS).astype(np.int64)]
    alone = torch.cat([logits_check.scores(train, [row], int(lengths[row])) for row in chosen])
    # at most as wide as the model's positions
    room = max(_room(corpus.train, logits_check.model), lengths.max())
    width = int(min(lengths[chosen].max() + PADDING, room))
    for pads_left in (False, True):
        tokens = dataclasses.replace(train, pads_left=pads_left)
        if logits_check.are_equal(logits_check.scores(tokens, chosen, width), alone):
            return _CheckResult(pads_left=pads_left)
    return _CheckResult("scores a text otherwise when padding stands beside it, on either side")


def _check_packing(logits_check: LogitsCheck, corpus: Corpus) -> _CheckResult:
    """Checks that tokens depend on earlier tokens only, and whether samples may be packed."""
    samples = _samples(corpus.train, logits_check.model, logits_check.config)
    alone = [logits_check.logits_alone(sample) for sample in samples]
    changed = logits_check.changed(samples[1])
    if not logits_check.are_equal(logits_check.logits_alone(changed)[:-1], alone[1][:-1]):
        return _CheckResult(
            f"lets a token see later ones, as encoders do, so it cannot be trained as"
            f" {logits_check.config.model.task}; choose a decoder such as Llama, Qwen or GPT-2"
        )
    if not logits_check.config.data.is_packed:
        return _CheckResult()
    pad = corpus.train.pad_token_id
    try:
        with as_model_error("the model takes no positions of samples"):
            whole = logits_check.logits_packed(samples, pad)
            moved = logits_check.logits_packed([samples[0], changed, samples[2]], pad)
    except ModelError as error:
        return _CheckResult(refusal=str(error))
    last = len(samples[0]) + len(samples[1]) - 1
    others = [place for place in range(len(whole)) if place != last]
    if not logits_check.are_equal(whole[others], moved[others]):
        return _CheckResult(refusal="samples that share a row see each other in this model")
    if not logits_check.are_equal(whole, torch.cat(alone)):
        return _CheckResult(
            refusal="this model scores samples in a shared row otherwise than alone"
        )
    return _CheckResult(attends_by_samples=_attends_by_samples(logits_check, samples, whole))


def _attends_by_samples(
    logits_check: LogitsCheck, samples: list[Tokens], whole: torch.Tensor
) -> bool:
    """Returns whether samples of packed rows may be attended apart; `whole` are their logits.

    Every attention of the model must have the mask that this stands for, and the logits must be
    the same.
    """
    model, config = logits_check.model, logits_check.config
    if not packed_attention.is_offered(model, config.precision, logits_check.device):
        return False
    try:
        packed_attention.use(model)
        with packed_attention.masks_compared() as are_same:
            found = logits_check.logits_by_samples(samples)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - the model has an attention that the kernel cannot compute
        return False
    finally:
        packed_attention.use(model, packed_attention.USUAL)
    return bool(are_same) and all(are_same) and are_near(found, whole)


def _samples(tokens: TokenSet, model: Any, config: TrainingConfig) -> list[Tokens]:
    """Returns samples of training tokens; the first exceeds the model's window if a row can."""
    window, capacity = window_of(model.config), config.data.max_length
    longest = min(window + BEYOND_WINDOW, capacity) if 0 < window < capacity else LENGTHS[0]
    lengths = [longest, *LENGTHS[1:]]
    ids = np.resize(tokens.columns[INPUT_IDS], sum(lengths)).astype(np.int64)
    return np.split(ids, np.cumsum(lengths)[:-1])


def window_of(config: Any) -> int:
    """Returns the width of local attention in tokens; 0 without local attention."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in WINDOW_FIELDS]
    return min((value for value in found if isinstance(value, int) and value > 0), default=0)
