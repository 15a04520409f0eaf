"""What training asks of a task: encoding, loss, metrics, and what becomes of the base's head.

The torch half of a task; its pure half is a `jobs.spec.task.Task`, which names this one.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.spec import task_registry
from jobs.spec.data import DataSpec, SourceSpec
from jobs.training.quality import QualityReport

Batch = Mapping[str, torch.Tensor]
Progress = Callable[[int, int], None]
"""Is told how many rows of how many are encoded."""


class Generator(Protocol):
    """Generates text with the model that is being evaluated; all workers must call it alike."""

    def sample(self, prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        """Sampled answers to prompts as token ids, each of at most so many tokens."""

    def answers(self) -> Mapping[int, list[int]]:
        """By evaluation row, what the model writes with its own generation settings: token ids."""

    def responses(self) -> Mapping[int, tuple[list[int], list[int]]]:
        """By evaluation row, what a decoder writes in place of the last response, and that one.

        Both are token ids without the end token. It writes the likeliest tokens, at most as many as
        the longest response has. Rows without a whole response are left out.
        """


class TaskTraining(abc.ABC):
    """How models of a task are trained and judged.

    Every shape is static and nothing waits for the device, so that a step can be captured.
    """

    heads: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of the modules that are trained whole beside an adapter."""
    has_labels: ClassVar[bool] = False
    """Whether each output of a model's head stands for a label: a base's head for the same labels
    is then kept, in their order."""
    keeps_head: ClassVar[bool] = True
    """Whether a base's head for the same labels has the outputs that are trained here."""
    has_quality: ClassVar[bool] = False
    """Whether the last evaluation gathers the scores of all rows for `quality`."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Token columns that the task uses itself, besides those that the model takes."""
    is_causal: ClassVar[bool] = False
    """Whether no token may see later ones."""
    has_references: ClassVar[bool] = False
    """Whether the loss compares with what the base gives: `reference` of every row is then computed
    before the first step, and becomes the row's labels."""

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:  # noqa: B027 - few tasks need it
        """Settle what of the tokenizer is saved with the model, before the first row is encoded."""

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """What tokenised rows depend on besides source, tokenizer and max_length, as JSON."""
        return {}

    @abc.abstractmethod
    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token columns and `labels` of every row, as `encoding.lists` makes them.

        `label_names` is empty for the training rows, whose names the table tells then. Raises
        DataError when columns or values cannot be used.
        """

    def check_labels(  # noqa: B027 - few tasks need it
        self, label_names: Sequence[str], source: SourceSpec
    ) -> None:
        """Raise DataError where the training rows' labels cannot be learnt."""

    def end_tokens(self, table: pa.Table) -> tuple[int, ...]:
        """Tokens that end a generated answer, from the training rows."""
        return ()

    def sample_texts(self, table: pa.Table) -> Sequence[Sequence[str]]:
        """Texts of the evaluation rows that are kept beside a model; none if tokens say it all."""
        return ()

    def left_out(self, table: pa.Table) -> int:
        """Rows of a split that are not used."""
        return 0

    def cut(self, table: pa.Table) -> int:
        """Rows of a split of which tokens that count are cut off, where the task counts them."""
        return 0

    def configure(self, config: Any, label_names: Sequence[str]) -> None:  # noqa: B027
        """Set what the task decides in a model's configuration."""

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> "TaskTraining":
        """Returns what trains and judges one run, with what follows from its rows.

        `labels` are those of the training rows. `model` is on its device, and has an adapter if the
        job has one. Only what this returns is asked for losses, sums, scores, metrics and published
        weights. Raises ModelError where the model cannot be trained for these rows.
        """
        return self

    def tried(self, model: Any, batch: Batch, most_targets: int) -> "TaskTraining":
        """Returns what trains and judges the model in the way that a few rows prove right.

        `batch` is as training gathers it. At most `most_targets` tokens of a micro batch count in
        the loss.
        """
        return self

    @property
    def remark(self) -> str:
        """What the user should know of how this model is trained; empty if nothing."""
        return ""

    def settle(  # noqa: B027 - few tasks need it
        self, model: Any, data: DataSpec, tokens: Any, tokenizer: Any
    ) -> None:
        """Set what a loaded base needs to be used after training.

        `tokens` is the `jobs.training.data.tokens.TokenSet` of the training rows.
        """

    @abc.abstractmethod
    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """The loss, (), summed over what counts; `weights`, (rows,), are 0 for filler rows."""

    @abc.abstractmethod
    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """The model's outputs in fp32, rows first."""

    @abc.abstractmethod
    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The task's activation of the logits, (rows, scores).

        If the activation is one of `PER_TOKEN`, (rows, tokens, scores).
        """

    @abc.abstractmethod
    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """What metrics are computed from, (n,) in float64, added over batches and workers.

        `counts`, (rows,), are 0 for rows that only fill up a batch.
        """

    @abc.abstractmethod
    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Every metric that needs no generated answers, and `loss`, from the sums of all rows."""

    def reference(self, model: Any, batch: Batch) -> torch.Tensor:
        """What the loss needs of the untrained model for each row, (rows, n) in fp32."""
        raise NotImplementedError

    def row_values(self, model: Any, batch: Batch) -> torch.Tensor:
        """What `score_metrics` needs of each row, (rows, n); for most tasks its scores."""
        return self.scores(model, batch)

    def score_metrics(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
    ) -> dict[str, float]:
        """Every metric that needs the `row_values` of all rows, (rows, n), in the rows' order."""
        return {}

    def quality(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
        text_of: Callable[[int], str],
    ) -> QualityReport | None:
        """What the report of a run shows of the last evaluation; `text_of` gives a row's text."""
        return None

    def published(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights as other programs load them, by the names of the saved file.

        A weight that stays as it was trained is returned itself, and not a copy.
        """
        return weights

    def write_beside(self, folder: Path, model: Any) -> None:  # noqa: B027 - few tasks need it
        """Write what other libraries need in a model's folder beside its weights."""

    def generated(
        self, data: DataSpec, tokenizer: Any, generator: Generator, names: Sequence[str]
    ) -> dict[str, float]:
        """The metrics of generated answers with these names, or more of them."""
        return {}


def training_of(task: str) -> TaskTraining:
    """The torch half of a task. Raises TaskError where it cannot be imported."""
    found: TaskTraining = task_registry.resolve(task_registry.find(task).training)
    return found
