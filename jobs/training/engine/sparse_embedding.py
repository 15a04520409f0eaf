"""The rows of an embedding that a step uses, on all workers: no other has a gradient."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from jobs.training.engine.flat_params import all_gather

LARGEST_SHARE = 0.5
"""Of an embedding's rows; more are exchanged sooner as a whole."""


class UsedEmbeddingRows:
    """Collects the ids that an embedding is called with in the passes of a step."""

    def __init__(self, module: torch.nn.Embedding, passes: int) -> None:
        self._passes, self._most = passes, int(LARGEST_SHARE * module.num_embeddings)
        self._ids: list[torch.Tensor] | None = None
        self._everyones: torch.Tensor | None = None
        self._work: Any = None
        self._is_armed = self._explains = False
        found = weakref.ref(self)

        def called(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            rows = found()
            if rows is not None:
                rows._collect(inputs[0])

        module.register_forward_pre_hook(called)

    def begin(self) -> None:
        """A step begins."""
        self._ids, self._everyones, self._work = [], None, None
        self._is_armed = False

    def arm(self) -> None:
        """The next call is the last pass's, after which workers exchange."""
        self._is_armed = True

    def end(self) -> None:
        """Calls until the next step are none of it."""
        self._ids = None

    def explain(self, gradient: torch.Tensor) -> bool:
        """Whether they are all rows with a gradient, on every worker; looked at once.

        Not where a model uses its embedding otherwise than by calling it, as to score tokens.
        """
        if self._explains or self._work is None:
            return True
        self._work.wait()
        rest = gradient.abs().amax(dim=1)
        rest[torch.cat(self._ids or [])] = 0
        unexplained = rest.amax()
        dist.all_reduce(unexplained, op=dist.ReduceOp.MAX)
        self._explains = not unexplained.item() > 0
        return self._explains

    def everyones(self) -> torch.Tensor | None:
        """(ids,): those of all workers, some more than once; None where it is not worth it.

        Also None where a step's passes are captured in pieces, each of which sees its own alone.
        """
        if self._work is None:
            return None
        self._work.wait()
        return self._everyones

    def _collect(self, ids: torch.Tensor) -> None:
        if self._ids is None:
            return
        self._ids.append(ids.flatten())
        count = sum(len(found) for found in self._ids) * dist.get_world_size()
        is_whole = self._is_armed and len(self._ids) == self._passes
        if is_whole and count <= self._most:
            self._everyones = ids.new_empty(count)
            self._work = all_gather(self._everyones, torch.cat(self._ids), async_op=True)


def of_embeddings(model: torch.nn.Module, passes: int) -> Mapping[int, UsedEmbeddingRows]:
    """By the identity of its weight, for each embedding that nothing else is tied to."""
    holders: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders.setdefault(id(weight), []).append(module)
    return {
        weight: UsedEmbeddingRows(modules[0], passes)
        for weight, modules in holders.items()
        if len(modules) == 1 and isinstance(modules[0], torch.nn.Embedding)
    }
