"""Losses of tokens without the logits of all tokens: the output layer scores them in pieces.

A model's logits, (rows, tokens, vocabulary) in fp32, often take more memory than all its layers.
Only tokens that count are scored, a piece at a time, and a piece's logits are made again in the
backward pass. Both happen inside the model's own forward pass, so that whatever wraps a model,
such as PyTorch's DDP or FSDP, sees the weights of its output layer used as always.

Source: Wijmans et al., 2024, "Cut your losses in large-vocabulary language models", and Hsu et al.,
2024, "Liger kernel", for losses in pieces.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from jobs.training.data.tokens import IGNORED
from jobs.training.model.adapter import unwrapped, without_ddp
from jobs.training.model.shape import EVAL_PIECE_LOGITS, PIECE_LOGITS

WHOLE_REMARK = (
    "the logits of all tokens are made at once, because this model's output layer cannot be run in"
    " pieces: a step takes more memory than forecast; lower train.micro_batch_size if it runs out"
)
"""Remark on a model whose tokens are not scored in pieces."""
FACTORS, DIVISORS = ("logit_scale", "lm_head_multiplier"), ("logits_scaling",)
"""Fields of a configuration of transformers with a factor of the logits, and with a divisor."""
CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Fields of a configuration with a bound that the logits approach."""
TRIED, TOLERANCE = 100.0, 1e-5
"""Largest logit with which a model is tried, and largest difference relative to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPrediction:
    """What a model predicts of the tokens of a batch, each (rows, tokens)."""

    losses: torch.Tensor
    """Cross-entropy in fp32; 0 for tokens that do not count."""
    is_right: torch.Tensor
    """Whether the likeliest token is the right one, where it was asked for."""
    mask: torch.Tensor
    """1 for tokens that count, else 0."""

    def row_means(self) -> torch.Tensor:
        """Returns the mean loss of each row's tokens, (rows, 1)."""
        return (self.losses.sum(dim=1) / self.mask.sum(dim=1))[:, None]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputLayer:
    """How the losses of a model's tokens are computed."""

    is_whole: bool = True
    """Whether the logits of all tokens are made, which suits every model."""
    factor: float = 1.0
    """What the model multiplies the logits of its output layer with."""
    cap: float = math.inf
    """The bound that the model's logits approach, after `factor`."""
    is_static: bool = False
    """Whether every training step scores as many tokens, as a captured step has to."""
    most_targets: int | None = None
    """Most tokens that count in a micro batch; without it a static step scores all tokens."""

    @property
    def remark(self) -> str:
        """Why a step takes more memory than forecast; empty if it does not."""
        return WHOLE_REMARK if self.is_whole else ""

    def predict(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        targets: torch.Tensor,
        *,
        judges: bool = False,
    ) -> TokenPrediction:
        """Returns the losses of tokens, and with `judges` which are predicted right.

        Args:
            model: Returns an output of transformers with `logits`, (rows, tokens, vocabulary).
            inputs: The arguments of the model.
            targets: The right token of each place, IGNORED where none counts, (rows, tokens).
            judges: Without it nothing is right.
        """
        if self.is_whole:
            logits = model(**inputs).logits
            found = _scored(logits.flatten(0, 1).float(), targets.flatten(), judges=judges)
        else:
            with _Pieces(self, model, targets.flatten(), judges=judges).inside():
                found = model(**inputs).logits
        losses, right = (each.view_as(targets) for each in found)
        return TokenPrediction(losses, right > 0, (targets != IGNORED).float())

    def finished(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the model's logits in fp32, from those of its output layer."""
        logits = logits.float()
        if self.factor != 1:
            logits = logits * self.factor
        return torch.tanh(logits / self.cap) * self.cap if math.isfinite(self.cap) else logits

    def bounded(self, most_targets: int) -> "OutputLayer":
        """Returns the same for micro batches in which at most so many tokens count."""
        return dataclasses.replace(self, most_targets=most_targets)


WHOLE = OutputLayer()


@torch.no_grad()
def find(model: Any, inputs: Mapping[str, Any], targets: torch.Tensor) -> OutputLayer:
    """Returns how the tokens of a model may be scored; in pieces if that is proven to be the same.

    The model gets random logits from its output layer: what it makes of them must be what
    `OutputLayer.finished` makes of them. `inputs` and `targets` are those of `predict`.
    """
    head = _head(model)
    # a piece that is computed again would drop out other numbers
    if head is None or any(_drops_out(module) for module in head.modules()):
        return WHOLE
    try:
        return _tried(model, head, inputs, targets)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - a model that computes with its logits in its own way
        return WHOLE


def _tried(model: Any, head: Any, inputs: Mapping[str, Any], targets: torch.Tensor) -> OutputLayer:
    config = unwrapped(model).config.get_text_config()
    factor = _number(config, FACTORS, 1.0) / _number(config, DIVISORS, 1.0)
    draw = torch.Generator().manual_seed(0)
    size = (*targets.shape, _vocabulary(model, head))
    given = (torch.rand(size, generator=draw) * 2 - 1).mul_(TRIED).to(targets.device)
    with _replaced(head, lambda hidden: given.clone()):
        made = model(**inputs).logits
    pieces = dataclasses.replace(WHOLE, is_whole=False, is_static=targets.is_cuda)
    cap = _number(config, CAPS, math.inf)
    for layer in (dataclasses.replace(pieces, factor=factor, cap=cap), pieces):
        expected = layer.finished(given)
        is_same = made.shape == expected.shape and bool(
            ((made - expected).abs() <= TOLERANCE * TRIED).all()
        )
        if is_same and _is_called_once(model, inputs, targets, layer):
            return layer
    return WHOLE


def _is_called_once(
    model: Any, inputs: Mapping[str, Any], targets: torch.Tensor, layer: OutputLayer
) -> bool:
    """Returns whether the output layer gets the hidden states of all tokens, in a single call.

    Its output must be what the model returns.
    """
    pieces = _Pieces(layer, model, targets.flatten(), judges=False)
    with pieces.inside():
        model(**inputs)
    return pieces.calls == 1 and pieces.places == targets.numel()


class _Pieces:
    """One forward pass whose output layer scores tokens in pieces."""

    def __init__(
        self, layer: OutputLayer, model: Any, targets: torch.Tensor, *, judges: bool
    ) -> None:
        self._layer, self._targets, self._judges = layer, targets, judges
        self._model, self._head = without_ddp(model), _head(model)
        self._vocabulary = _vocabulary(model, self._head)
        self._score = self._head.forward
        self._found: torch.Tensor | None = None
        self.calls, self.places = 0, 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Lets a forward pass of the model return (2, places) in place of its logits.

        The first row holds losses, the second row is 1 for tokens that are predicted right.
        """
        # before the hooks of others, which look for tensors that need gradients in the output
        hook = self._model.register_forward_hook(self._output, prepend=True)
        try:
            with _replaced(self._head, self._run):
                yield
        finally:
            hook.remove()
            self._found = None  # its graph holds this object

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, -2)
        self.calls, self.places = self.calls + 1, len(flat)
        kept = self._kept()
        targets = self._targets
        if kept is not None:
            flat, targets = flat.index_select(0, kept), targets.index_select(0, kept)
        found = self._in_pieces(flat, targets)
        if kept is not None:
            empty = found.new_zeros(2, len(self._targets))
            found = empty.index_copy(1, kept, found)
        self._found = found
        return hidden[..., :1].detach()  # the model may still scale what would be its logits

    def _kept(self) -> torch.Tensor | None:
        """Returns the places of the tokens that are scored; None for all.

        A static training step always scores as many: those that count, and some others.
        """
        if self._layer.is_static and torch.is_grad_enabled():
            most = self._layer.most_targets
            if most is None or most >= len(self._targets):
                return None
            return (self._targets == IGNORED).int().argsort(stable=True)[:most]
        return (self._targets != IGNORED).nonzero().flatten()

    def _in_pieces(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        most = PIECE_LOGITS if torch.is_grad_enabled() else EVAL_PIECE_LOGITS
        count = max(1, math.ceil(len(hidden) * self._vocabulary / most))
        if count == 1:
            return self._piece(hidden, targets)
        pairs = zip(hidden.chunk(count), targets.chunk(count), strict=True)
        if not torch.is_grad_enabled():
            return torch.cat([self._piece(*pair) for pair in pairs], dim=1)
        # nothing drops out in the layer, and a captured step cannot read a random state
        again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(self._piece, *pair) for pair in pairs], dim=1)

    def _piece(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self._layer.finished(self._score(hidden))
        return torch.stack(_scored(logits, targets, judges=self._judges))

    def _output(self, module: Any, args: Any, output: Any) -> Any:
        output["logits"] = self._found
        return output


def _scored(
    logits: torch.Tensor, targets: torch.Tensor, *, judges: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns losses, and 1 for tokens that are predicted right if it `judges`, both (places,)."""
    losses = torch.nn.functional.cross_entropy(
        logits, targets, reduction="none", ignore_index=IGNORED
    )
    right = logits.argmax(dim=1) == targets if judges else torch.zeros_like(targets)
    return losses, right.to(losses.dtype)


@contextlib.contextmanager
def _replaced(module: Any, forward: Any) -> Iterator[None]:
    """Replaces a module's `forward` inside the context."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _head(model: Any) -> Any:
    """Returns the layer that makes logits of hidden states; None if the model names none."""
    return unwrapped(model).get_output_embeddings()


def _drops_out(module: Any) -> bool:
    return isinstance(module, torch.nn.Dropout) and module.p > 0


def _vocabulary(model: Any, head: Any) -> int:
    found = getattr(head, "out_features", None)
    return int(found or unwrapped(model).config.get_text_config().vocab_size)


def _number(config: Any, names: tuple[str, ...], usual: float) -> float:
    """Returns the first of these fields that a configuration has."""
    found = (getattr(config, name, None) for name in names)
    return float(next((value for value in found if value is not None), usual))
