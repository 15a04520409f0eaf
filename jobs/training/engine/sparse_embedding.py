"""Finds the embedding rows that a step uses on any worker: only these have a gradient."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from jobs.training.engine.flat_params import all_gather

LARGEST_SHARE = 0.5
"""Share of an embedding's rows above which the whole gradient is exchanged faster."""


class UsedEmbeddingRows:
    """Collects the ids with which an embedding is called in the passes of a step."""

    def __init__(self, module: torch.nn.Embedding, passes: int) -> None:
        self._passes, self._most = passes, int(LARGEST_SHARE * module.num_embeddings)
        self._ids: list[torch.Tensor] | None = None
        self._all_ids: torch.Tensor | None = None
        self._work: Any = None
        self._is_enabled = self._is_covered = False
        found = weakref.ref(self)

        def called(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            rows = found()
            if rows is not None:
                rows._collect(inputs[0])

        module.register_forward_pre_hook(called)

    def begin(self) -> None:
        """Starts a step."""
        self._ids, self._all_ids, self._work = [], None, None
        self._is_enabled = False

    def enable(self) -> None:
        """Lets the next call, which is in the last pass, exchange the ids between workers."""
        self._is_enabled = True

    def end(self) -> None:
        """Ends a step: ignores calls until the next one."""
        self._ids = None

    def covers(self, gradient: torch.Tensor) -> bool:
        """Returns whether all rows with a gradient, on every worker, are among the collected ids.

        It is checked once. False for a model that also uses the embedding without calling it, for
        example to score tokens. `gradient` is (rows, hidden).
        """
        if self._is_covered or self._work is None:
            return True
        self._work.wait()
        rest = gradient.abs().amax(dim=1)
        rest[torch.cat(self._ids or [])] = 0
        uncovered = rest.amax()
        dist.all_reduce(uncovered, op=dist.ReduceOp.MAX)
        self._is_covered = not uncovered.item() > 0
        return self._is_covered

    def ids_of_all_workers(self) -> torch.Tensor | None:
        """Returns the ids of all workers, (ids,), possibly with duplicates.

        None if there are too many, or if the passes of a step are captured in separate pieces, each
        of which sees only its own ids.
        """
        if self._work is None:
            return None
        self._work.wait()
        return self._all_ids

    def _collect(self, ids: torch.Tensor) -> None:
        if self._ids is None:
            return
        self._ids.append(ids.flatten())
        count = sum(len(found) for found in self._ids) * dist.get_world_size()
        is_complete = self._is_enabled and len(self._ids) == self._passes
        if is_complete and count <= self._most:
            self._all_ids = ids.new_empty(count)
            self._work = all_gather(self._all_ids, torch.cat(self._ids), async_op=True)


def of_embeddings(model: torch.nn.Module, passes: int) -> Mapping[int, UsedEmbeddingRows]:
    """Returns the used rows of each embedding without tied weights, by the id of its weight."""
    holders: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders.setdefault(id(weight), []).append(module)
    return {
        weight: UsedEmbeddingRows(modules[0], passes)
        for weight, modules in holders.items()
        if len(modules) == 1 and isinstance(modules[0], torch.nn.Embedding)
    }
