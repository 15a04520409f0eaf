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
from jobs.spec import task_registry
from jobs.spec.task import PER_TOKEN
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus
from jobs.training.data import packing
from jobs.training.data.batches import WIDTH_MULTIPLE
from jobs.training.data.tokens import (
    INPUT_IDS,
    LOSS_MASK,
    POSITION_IDS,
    TARGET_IDS,
    TokenSet,
    TokenStore,
)
from jobs.training.engine.inputs import attention_inputs
from jobs.training.model.adapter import unwrapped
from jobs.training.model.base import settle, token_embeddings
from jobs.training.model.library import as_model_error
from jobs.training.model.positions import learned_positions
from jobs.training.model.precision import autocast
from jobs.training.task import training_of
from jobs.training.world import World

PADDED_ROWS, PADDING = 4, 8
"""Number of rows that are padded together, and padding tokens of the longest of them."""
LENGTHS = (17, 24, 20)
"""Tokens of the samples in a packed row; the first is longer if the model has a window."""
FILLER_TOKENS = 4
"""Padding tokens at the end of the packed row."""
BEYOND_WINDOW = 16
"""Tokens by which the longest sample exceeds the model's attention window."""
WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Names of the width of local attention in configurations of transformers."""
EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.1
"""Largest difference between equal logits, as a share of the largest logit: with 32-bit weights,
and with weights or matrix products in a smaller type."""
Tokens = NDArray[np.int64]


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
                result = check(_LogitsCheck(model, config, world.device), corpus)
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
    return dataclasses.replace(corpus, train=packed), ""


@dataclasses.dataclass(frozen=True, slots=True)
class _CheckResult:
    error: str = ""
    """Why the model cannot be trained; empty if it can."""
    refusal: str = ""
    """Why samples must not be packed; empty if they may."""
    pads_left: bool = False


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


def _check_padding(logits_check: "_LogitsCheck", corpus: Corpus) -> _CheckResult:
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


def _check_packing(logits_check: "_LogitsCheck", corpus: Corpus) -> _CheckResult:
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
    return _CheckResult()


def _samples(tokens: TokenSet, model: Any, config: TrainingConfig) -> list[Tokens]:
    """Returns samples of training tokens; the first exceeds the model's window if a row can."""
    window, capacity = _window(model.config), config.data.max_length
    longest = min(window + BEYOND_WINDOW, capacity) if 0 < window < capacity else LENGTHS[0]
    lengths = [longest, *LENGTHS[1:]]
    ids = np.resize(tokens.columns[INPUT_IDS], sum(lengths)).astype(np.int64)
    return np.split(ids, np.cumsum(lengths)[:-1])


def _window(config: Any) -> int:
    """Returns the width of local attention in tokens; 0 without local attention."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in WINDOW_FIELDS]
    return min((value for value in found if isinstance(value, int) and value > 0), default=0)


class _LogitsCheck:
    """Computes logits of a model, and compares them up to rounding."""

    def __init__(self, model: Any, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.config, self._device = model, config, device
        is_narrow = any(p.dtype != torch.float32 for p in model.parameters())
        self._precision = config.precision if is_narrow else "fp32"
        is_exact = not is_narrow and config.precision != "tf32"
        self._bound = EXACT_BOUND if is_exact else ROUNDED_BOUND

    def scores(self, tokens: TokenSet, rows: Any, width: int) -> torch.Tensor:
        """Returns the task's logits of whole rows padded to `width`, (rows, ...).

        If each token has its own, those of all tokens without padding, (tokens, labels).
        """
        # a store of these rows only: all rows are on the device already, or do not fit
        batch = TokenStore(tokens.taken(rows), self._device).gather(
            torch.arange(len(rows), device=self._device), width
        )
        with autocast(self._precision, self._device):
            logits = training_of(self.config.model.task).logits(self.model, batch)
        is_per_token = task_registry.find(self.config.model.task).activation in PER_TOKEN
        return (logits[batch["attention_mask"].bool()] if is_per_token else logits).cpu()

    def logits_alone(self, sample: Tokens) -> torch.Tensor:
        """Returns the logits of a row with a single sample, (tokens, vocabulary)."""
        ids = torch.from_numpy(sample)[None]
        return self._logits({INPUT_IDS: ids, "attention_mask": torch.ones_like(ids)})

    def logits_packed(self, samples: list[Tokens], pad_token_id: int) -> torch.Tensor:
        """Returns the logits of a packed row that ends with filler tokens, without the filler's.

        The shape is (tokens, vocabulary).
        """
        filler = np.full(FILLER_TOKENS, pad_token_id)
        places = [*map(np.arange, map(len, samples)), np.zeros(FILLER_TOKENS, np.int64)]
        # two rows, because libraries may detect packed samples only in a batch of one row
        batch = {
            INPUT_IDS: torch.from_numpy(np.stack([np.concatenate([*samples, filler])] * 2)),
            POSITION_IDS: torch.from_numpy(np.stack([np.concatenate(places)] * 2)),
        }
        return self._logits(batch)[:-FILLER_TOKENS]

    def changed(self, sample: Tokens) -> Tokens:
        """Returns the sample with another last token."""
        embeddings = token_embeddings(self.model)
        known = int(sample.max()) + 2 if embeddings is None else embeddings.shape[0]
        return np.append(sample[:-1], (sample[-1] + 1) % known)

    def are_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Returns whether logits differ by rounding only."""
        difference = float((one - other).abs().max() / one.abs().max().clamp(min=1e-6))
        return difference <= self._bound  # false for NaN

    def _logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        placed = {name: tensor.to(self._device) for name, tensor in batch.items()}
        with autocast(self._precision, self._device):
            found = self.model(
                input_ids=placed[INPUT_IDS], use_cache=False, **attention_inputs(placed)
            )
        logits: torch.Tensor = found.logits[0].float().cpu()
        return logits
