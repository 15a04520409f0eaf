"""Proves on a few rows, before the first step, what training relies on in every batch.

A row gets the logits that it has alone whatever pads it, and the tokens of a language model those
of their own sample's earlier tokens, whether it stands alone or shares a row with others.
"""

import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.errors import ModelError
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus
from jobs.training.data import packing
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, POSITION_IDS, TokenSet, TokenStore
from jobs.training.engine.inputs import attention_inputs
from jobs.training.model.adapter import has_adapter
from jobs.training.model.base import settle, token_embeddings
from jobs.training.model.library import as_model_error
from jobs.training.model.precision import autocast
from jobs.training.task import training_of
from jobs.training.world import World

PADDED_ROWS, PADDING = 4, 8
"""Rows that are padded together, and by how many tokens the longest of them."""
LENGTHS = (17, 24, 20)
"""Tokens of the samples that share a row; the first is longer where the model has a window."""
FILLER_TOKENS = 4
"""Tokens of padding at the end of that row."""
BEYOND_WINDOW = 16
"""By how many tokens the longest sample exceeds the model's attention window."""
WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Names under which configurations of transformers keep the width of local attention."""
POSITIONS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Names of the embeddings that hold a model's learnt positions."""
EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.1
"""Largest difference of logits that ought to be equal, as a share of the largest logit: with 32-bit
weights, and with weights or products in a smaller type."""
Tokens = NDArray[np.int64]


def proven(corpus: Corpus, model: Any, config: TrainingConfig, world: World) -> tuple[Corpus, str]:
    """The rows as this model can be trained on them, and a remark on what the job wants otherwise.

    Rows are padded on the right, or else on the left; those of causal models are packed if the job
    wants them so and the model keeps samples apart.

    Raises:
        ModelError: if rows are longer than the model's positions or hold tokens that it lacks, if
            padding changes scores on either side, or if a token sees later ones.
    """
    corpus = _accepted(corpus, model)
    _check_tokens(corpus, model, config)
    model.eval()
    try:
        with torch.no_grad():
            judge = _judge_packing if training_of(config.model.task).is_causal else _judge_padding
            with as_model_error("cannot score a row of the training data"):
                verdict = judge(_Judge(model, config, world.device), corpus)
    except ModelError as error:
        verdict = _Verdict(str(error))
    finally:
        model.train()
    verdict = world.gather(verdict)[0]  # every worker must lay out the same rows
    if verdict.error:
        raise ModelError(f"{config.model.base} {verdict.error}")
    if verdict.pads_left:
        settle(corpus.tokenizer, padding_side="left")
        train, held_back = (
            dataclasses.replace(tokens, pads_left=True) for tokens in (corpus.train, corpus.eval)
        )
        return dataclasses.replace(corpus, train=train, eval=held_back), ""
    settle(corpus.tokenizer, padding_side="right")
    if not config.data.is_packed:
        return corpus, ""
    if verdict.refusal:
        return corpus, f"rows are not packed: {verdict.refusal}"
    packed = packing.pack(corpus.train, config.data.max_length)
    return dataclasses.replace(corpus, train=packed), ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Verdict:
    error: str = ""
    """Why the model cannot be trained; empty if it can."""
    refusal: str = ""
    """Why samples must not share a row; empty if they may."""
    pads_left: bool = False


def _accepted(corpus: Corpus, model: Any) -> Corpus:
    """Without token columns that the model does not take, such as token types."""
    bare = model.get_base_model() if has_adapter(model) else model
    taken = {*inspect.signature(bare.forward).parameters, LOSS_MASK}
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
    largest = max(int(tokens.columns[INPUT_IDS].max()) for tokens in (corpus.train, corpus.eval))
    if largest >= known:
        raise ModelError(
            f"the tokenizer of {config.model.base} gives token {largest}, and the model has {known}"
            " embeddings; they do not belong together"
        )
    longest = max(int(tokens.lengths.max()) for tokens in (corpus.train, corpus.eval))
    room = _positions(model)
    if longest > room:
        raise ModelError(
            f"{config.model.base} takes {room} tokens, and the longest row has {longest}; set"
            f" data.max_length to {room} or less"
        )


def _positions(model: Any) -> float:
    """Tokens for which the model has learnt positions; infinite where it computes them."""
    found = [
        module.num_embeddings
        - (-1 if module.padding_idx is None else module.padding_idx)
        - 1
        - getattr(module, "offset", 0)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and name.rpartition(".")[2] in POSITIONS
    ]
    return min(found, default=float("inf"))


def _judge_padding(judge: "_Judge", corpus: Corpus) -> _Verdict:
    """Which side rows may be padded on, tried on rows of different lengths."""
    lengths = corpus.train.lengths
    order = np.argsort(lengths, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, PADDED_ROWS).astype(np.int64)]
    alone = torch.cat([judge.scores(corpus.train, [row], int(lengths[row])) for row in chosen])
    # never wider than the model's positions
    width = int(min(lengths[chosen].max() + PADDING, max(_positions(judge.model), lengths.max())))
    for pads_left in (False, True):
        tokens = dataclasses.replace(corpus.train, pads_left=pads_left)
        if judge.are_equal(judge.scores(tokens, chosen, width), alone):
            return _Verdict(pads_left=pads_left)
    return _Verdict("scores a text otherwise when padding stands beside it, on either side")


def _judge_packing(judge: "_Judge", corpus: Corpus) -> _Verdict:
    samples = _samples(corpus.train, judge.model, judge.config)
    alone = [judge.logits_alone(sample) for sample in samples]
    changed = judge.changed(samples[1])
    if not judge.are_equal(judge.logits_alone(changed)[:-1], alone[1][:-1]):
        return _Verdict(
            f"lets a token see later ones, as encoders do, so it cannot be trained as"
            f" {judge.config.model.task}; choose a decoder such as Llama, Qwen or GPT-2"
        )
    if not judge.config.data.is_packed:
        return _Verdict()
    pad = corpus.train.pad_token_id
    try:
        with as_model_error("the model takes no positions of samples"):
            whole = judge.logits_packed(samples, pad)
            moved = judge.logits_packed([samples[0], changed, samples[2]], pad)
    except ModelError as error:
        return _Verdict(refusal=str(error))
    last = len(samples[0]) + len(samples[1]) - 1
    others = [place for place in range(len(whole)) if place != last]
    if not judge.are_equal(whole[others], moved[others]):
        return _Verdict(refusal="samples that share a row see each other in this model")
    if not judge.are_equal(whole, torch.cat(alone)):
        return _Verdict(refusal="this model scores samples in a shared row otherwise than alone")
    return _Verdict()


def _samples(tokens: TokenSet, model: Any, config: TrainingConfig) -> list[Tokens]:
    """Pieces of the training tokens; the first exceeds the model's window where rows can."""
    window, capacity = _window(model.config), config.data.max_length
    longest = min(window + BEYOND_WINDOW, capacity) if 0 < window < capacity else LENGTHS[0]
    lengths = [longest, *LENGTHS[1:]]
    ids = np.resize(tokens.columns[INPUT_IDS], sum(lengths)).astype(np.int64)
    return np.split(ids, np.cumsum(lengths)[:-1])


def _window(config: Any) -> int:
    """Tokens that local attention reaches back; 0 if every layer sees all."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in WINDOW_FIELDS]
    return min((value for value in found if isinstance(value, int) and value > 0), default=0)


class _Judge:
    """What a model gives rows, and whether two answers are equal up to rounding."""

    def __init__(self, model: Any, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.config, self._device = model, config, device
        is_narrow = any(p.dtype != torch.float32 for p in model.parameters())
        self._precision = config.precision if is_narrow else "fp32"
        is_exact = not is_narrow and config.precision != "tf32"
        self._bound = EXACT_BOUND if is_exact else ROUNDED_BOUND

    def scores(self, tokens: TokenSet, rows: Any, width: int) -> torch.Tensor:
        """Logits of whole rows, rows first."""
        # a store of these rows alone: the whole set is on the device already, or does not fit
        batch = TokenStore(tokens.taken(rows), self._device).gather(
            torch.arange(len(rows), device=self._device), width
        )
        with autocast(self._precision, self._device):
            return training_of(self.config.model.task).logits(self.model, batch).cpu()

    def logits_alone(self, sample: Tokens) -> torch.Tensor:
        """Logits of all tokens of a row that holds one sample, (tokens, vocabulary)."""
        ids = torch.from_numpy(sample)[None]
        return self._logits({INPUT_IDS: ids, "attention_mask": torch.ones_like(ids)})

    def logits_packed(self, samples: list[Tokens], pad_token_id: int) -> torch.Tensor:
        """The same of a row of several samples that ends with filler tokens, but for those."""
        filler = np.full(FILLER_TOKENS, pad_token_id)
        places = [*map(np.arange, map(len, samples)), np.zeros(FILLER_TOKENS, np.int64)]
        # two rows: libraries may look for samples in a batch of one row alone
        batch = {
            INPUT_IDS: torch.from_numpy(np.stack([np.concatenate([*samples, filler])] * 2)),
            POSITION_IDS: torch.from_numpy(np.stack([np.concatenate(places)] * 2)),
        }
        return self._logits(batch)[:-FILLER_TOKENS]

    def changed(self, sample: Tokens) -> Tokens:
        """The sample with another last token."""
        embeddings = token_embeddings(self.model)
        known = int(sample.max()) + 2 if embeddings is None else embeddings.shape[0]
        return np.append(sample[:-1], (sample[-1] + 1) % known)

    def are_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether logits differ by rounding alone."""
        difference = float((one - other).abs().max() / one.abs().max().clamp(min=1e-6))
        return difference <= self._bound  # which is false for what is no number

    def _logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        placed = {name: tensor.to(self._device) for name, tensor in batch.items()}
        with autocast(self._precision, self._device):
            found = self.model(
                input_ids=placed[INPUT_IDS], use_cache=False, **attention_inputs(placed)
            )
        logits: torch.Tensor = found.logits[0].float().cpu()
        return logits
