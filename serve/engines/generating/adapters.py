"""Low-rank adapters beside one base: each row of a batch takes the product of its own.

The adapters in memory lie side by side in one matrix of a layer. A token is multiplied with all of
them, and a mask keeps those columns alone that are of its row's adapter, so that a step has the
same shapes, and the same captured graph, whichever adapters its rows have.
"""

import collections
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

NONE = -1
"""Slot of a row without an adapter."""


class UnsuitableAdapterError(Exception):
    """An adapter that this base, or its slots, cannot take."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a linear layer: `x @ down.T @ up.T`."""

    down: torch.Tensor
    """(rank, inputs)."""
    up: torch.Tensor
    """(outputs, rank), multiplied by the adapter's scale."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The weights of an adapter, on the host."""

    name: str
    """Tells it from all others, such as `support@0a1b2c3d4e5f`."""
    layers: Mapping[str, LowRank]
    """By the layer's name in the model."""

    @property
    def rank(self) -> int:
        """The greatest rank of a layer."""
        return max(each.down.shape[0] for each in self.layers.values())


@dataclass(frozen=True, slots=True)
class Adapted:
    """A base that takes adapters."""

    base: Path | str
    """The folder of its files, or its id on the Hub."""
    first: Adapter
    """The others adapt the same layers, or fewer."""
    slots: int
    """Adapters that are in memory at once."""
    rank: int
    """Their greatest rank."""


@dataclass(frozen=True, slots=True)
class HeldAdapter:
    """An adapter that stays in its slot until it is released as often as it was held."""

    name: str
    slot: int


class AdaptedLinear(torch.nn.Module):
    """A linear layer that adds to each token the product of its row's adapter."""

    down: torch.Tensor
    """(slots · rank, inputs)."""
    up: torch.Tensor
    """(slots · rank, outputs)."""

    def __init__(self, base: Any, slots: "AdapterSlots") -> None:
        """Args: a layer of torch or transformers, and the slots whose mask it reads."""
        super().__init__()
        self.base, self._slots = base, slots
        inputs, outputs = sizes(base)
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        for name, width in (("down", inputs), ("up", outputs)):
            self.register_buffer(name, torch.zeros(slots.width, width, **like), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (…, outputs) of (…, inputs)."""
        result: torch.Tensor = self.base(x)
        narrow = torch.nn.functional.linear(x, self.down) * self._slots.mask
        return torch.addmm(
            result.reshape(-1, result.shape[-1]), narrow.reshape(-1, narrow.shape[-1]), self.up
        ).view(result.shape)


class AdapterSlots:
    """Adapters in the memory of a model's device; all calls come from one thread.

    Those that no row holds stay until their slot is needed, and the one longest unused goes first.
    """

    def __init__(self, model: Any, settings: Adapted) -> None:
        """Replaces layers of a causal model of transformers by those that take an adapter.

        Raises:
            UnsuitableAdapterError: if the first adapter does not suit the model.
        """
        slots, self.rank = settings.slots, settings.rank
        self.width = slots * self.rank
        self.loads = 0
        """Adapters that were copied to the device so far."""
        self._dtype = model.dtype
        self._columns = torch.arange(slots, device=model.device).repeat_interleave(self.rank)
        """Slot of each column, (slots · rank,)."""
        self._none = torch.zeros(1, 1, self.width, dtype=model.dtype, device=model.device)
        self.mask = self._none
        """1 for the columns of each token's adapter, (rows, tokens, slots · rank) or broadcast."""
        self._layers = {name: self._adapted(model, name) for name in settings.first.layers}
        self._names: list[str | None] = [None] * slots
        self._held = [0] * slots
        self._unused = collections.OrderedDict.fromkeys(range(slots))
        """Slots that no row holds, the one longest unused first."""
        self._load(0, settings.first)
        self._unused.move_to_end(0)

    def _adapted(self, model: Any, name: str) -> AdaptedLinear:
        parent, _, own = name.rpartition(".")
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            raise UnsuitableAdapterError(f"the base has no layer {name}") from None
        if layer is model.get_output_embeddings():
            raise UnsuitableAdapterError(f"{name} is the output layer, which takes no adapter")
        if not isinstance(layer, torch.nn.Linear | transformers.pytorch_utils.Conv1D):
            raise UnsuitableAdapterError(f"{name} is no linear layer")
        adapted = AdaptedLinear(layer, self)
        setattr(model.get_submodule(parent), own, adapted)
        return adapted

    @property
    def loaded(self) -> list[HeldAdapter]:
        """The adapters in memory, without holding them."""
        return [HeldAdapter(name, at) for at, name in enumerate(self._names) if name is not None]

    def check(self, adapter: Adapter) -> None:
        """Raises UnsuitableAdapterError if an adapter does not suit the slots."""
        other = sorted(set(adapter.layers) - set(self._layers))
        if other:
            message = f"changes {other[0]}, which the deployed adapter does not"
            raise UnsuitableAdapterError(message)
        if adapter.rank > self.rank:
            raise UnsuitableAdapterError(f"has rank {adapter.rank}; adapters here have {self.rank}")
        for name, low in adapter.layers.items():
            found, wanted = (low.down.shape[1], low.up.shape[0]), sizes(self._layers[name].base)
            if found != wanted:
                message = f"has {found} inputs and outputs in {name}; the base has {wanted}"
                raise UnsuitableAdapterError(message)

    def hold(self, adapter: Adapter) -> HeldAdapter | None:
        """Brings an adapter into a slot for a row; None while rows hold all slots."""
        if adapter.name in self._names:
            slot = self._names.index(adapter.name)
        elif self._unused:
            slot = next(iter(self._unused))
            self._load(slot, adapter)
        else:
            return None
        self._unused.pop(slot, None)
        self._held[slot] += 1
        return HeldAdapter(adapter.name, slot)

    def release(self, held: HeldAdapter) -> None:
        """Ends a hold."""
        self._held[held.slot] -= 1
        if not self._held[held.slot]:
            self._unused[held.slot] = None

    def _load(self, slot: int, adapter: Adapter) -> None:
        self.check(adapter)
        self._names[slot] = None  # until all of it is there
        own = slice(slot * self.rank, (slot + 1) * self.rank)
        with torch.inference_mode():
            for name, layer in self._layers.items():
                layer.down[own].zero_()
                layer.up[own].zero_()
                if (low := adapter.layers.get(name)) is not None:
                    layer.down[own][: len(low.down)].copy_(low.down)
                    layer.up[own][: len(low.down)].copy_(low.up.t())
        self._names[slot] = adapter.name
        self.loads += 1

    def reset(self) -> None:
        """Computes rows of any form without adapters, until the next `select`."""
        self.mask = self._none

    def select(self, slots: torch.Tensor) -> None:
        """Sets the slot of each row of the next forward pass, (rows, tokens) or (rows, 1)."""
        self.mask = (slots[..., None] == self._columns).to(self._dtype)


@contextlib.contextmanager
def alone(slots: AdapterSlots | None, adapter: Adapter | None) -> Iterator[None]:
    """Computes inside with one adapter, or none, while no other row is computed."""
    if slots is None:
        yield
        return
    held = slots.hold(adapter) if adapter else None
    slots.select(torch.tensor([[slot_of(held)]], device=slots.mask.device))
    try:
        yield
    finally:
        if held is not None:
            slots.release(held)


def slot_of(held: HeldAdapter | None) -> int:
    """Returns the slot of a row's adapter."""
    return NONE if held is None else held.slot


def name_of(held: HeldAdapter | None) -> str:
    """Returns the name of a row's adapter; empty for none."""
    return "" if held is None else held.name


def sizes(layer: Any) -> tuple[int, int]:
    """Returns the inputs and outputs of a linear layer."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    inputs, outputs = layer.weight.shape  # of transformers' Conv1D
    return int(inputs), int(outputs)
