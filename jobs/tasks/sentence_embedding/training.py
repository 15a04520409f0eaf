"""Sentence embedding in torch: pooled vectors, in-batch negatives or scored cosines."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.errors import ModelError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.sentence_embedding import losses, metrics, rows
from jobs.tasks.sentence_embedding.rows import TYPES
from jobs.tasks.sentence_embedding.task import EmbeddingData
from jobs.tasks.text_classification.rows import sample_texts
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import INPUT_IDS
from jobs.training.model import base as base_model
from jobs.training.model import pooling
from jobs.training.model.pooling import Pooling
from jobs.training.task import Batch, TaskTraining

MEAN = Pooling()


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingTraining(TaskTraining):
    """A vector for each text, near to those of texts that mean the same."""

    pooling: Pooling = MEAN
    is_scored: bool = False
    """Whether rows have scores, and not positives."""
    dimensions: tuple[int, ...] = ()
    """Leading numbers of vectors that must suffice by themselves."""
    scale: float = 20.0
    max_length: int = 128

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> "EmbeddingTraining":
        """Returns the half with a job's pooling and loss; raises ModelError for what cannot be."""
        own, size = _own(data), model.config.get_text_config().hidden_size
        if own.dimensions and own.dimensions[0] >= size:
            raise ModelError(
                f"data.dimensions has {own.dimensions[0]}, and vectors of the base have {size}"
                " numbers; name smaller ones"
            )
        for name, parameter in model.named_parameters():
            if "pooler" in name.split("."):  # it is no part of a vector, and gets no gradient
                parameter.requires_grad = False
        base = str(model.config._name_or_path)
        mode = (pooling.of_base(base) or "mean") if own.pooling == "auto" else own.pooling
        return dataclasses.replace(
            self,
            pooling=Pooling(mode, own.normalize),
            dimensions=own.dimensions,
            scale=own.scale,
            max_length=own.max_length,
        )

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Let whoever loads the tokenizer cut texts where training does."""
        base_model.settle(tokenizer, model_max_length=data.max_length)

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns, and the score by which others are divided."""
        own = _own(data)
        return {"texts": own.roles, "score": own.score, "highest": own.highest_score}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids of every text of every row, with scores. Raises DataError."""
        return rows.encode(source, _own(data), tokenizer, progress)

    def sample_texts(self, table: pa.Table) -> Sequence[Sequence[str]]:
        """Texts of the evaluation rows that are kept beside a model."""
        return sample_texts(table)

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """The loss of finding positives, or of cosines, times the rows' weights, summed."""
        texts = self._vectors(model, batch)
        with torch.autocast(weights.device.type, enabled=False):
            if self.is_scored:
                errors = losses.cosine_errors(texts, batch["labels"], self.dimensions)
                return (errors * weights).sum()
            return losses.in_batch_negatives(
                texts, weights, scale=self.scale, dimensions=self.dimensions
            )

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """The vectors of the rows' first texts in fp32, (rows, n)."""
        types = {TYPES: batch[TYPES]} if TYPES in batch else {}
        return self._pooled(model, batch[INPUT_IDS], batch["attention_mask"], types)

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The vectors of the rows' first texts, (rows, n)."""
        return self.logits(model, batch)

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The number of rows; metrics need the vectors of all rows."""
        self._vectors(model, batch)  # so that it takes as long as an evaluation of all rows
        return counts.sum().double()[None]

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """No loss yet: that of evaluations compares all rows, as the metrics do."""
        return {"loss": math.nan}

    def row_values(self, model: Any, batch: Batch) -> torch.Tensor:
        """The vectors of all texts of each row, one after the other, (rows, texts * n)."""
        return torch.cat(self._vectors(model, batch), dim=1)

    def score_metrics(
        self,
        scores: NDArray[np.float32],
        labels: NDArray[np.generic],
        label_names: Sequence[str],
    ) -> dict[str, float]:
        """Correlations with scores or ranks of positives, and the loss of all rows in one batch."""
        texts = 2 if self.is_scored else labels.shape[1]
        anchors, *others = np.split(scores, texts, axis=1)
        if self.is_scored:
            return metrics.correlations(anchors, others[0], labels.astype(np.float64))
        return metrics.ranking(anchors, others, labels.astype(np.int64), self.scale)

    def write_beside(self, folder: Path, model: Any) -> None:
        """Write the files by which sentence-transformers loads the folder."""
        size = model.config.get_text_config().hidden_size
        pooling.write(self.pooling, folder, size=size, max_length=self.max_length)

    def _vectors(self, model: Any, batch: Batch) -> list[torch.Tensor]:
        """The vectors of each text of the rows, (rows, n) each, from one pass over all texts."""
        names = [f"{prefix}{INPUT_IDS}" for prefix in rows.prefixes(1 + len(rows.FURTHER))]
        names = [name for name in names if name in batch]
        ids = torch.cat([batch[name] for name in names])
        masks = [batch["attention_mask"], *(batch[f"{name}_mask"] for name in names[1:])]
        typed = [name for name in batch if name.endswith(TYPES)] if TYPES in batch else []
        types = {TYPES: torch.cat([batch[name] for name in typed])} if typed else {}
        return list(self._pooled(model, ids, torch.cat(masks), types).chunk(len(names)))

    def _pooled(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, types: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        found = model(input_ids=ids, attention_mask=mask, **types)
        return self.pooling.pool(found.last_hidden_state, mask)


RANKED = EmbeddingTraining()
SCORED = EmbeddingTraining(is_scored=True)


def _own(data: DataSpec) -> EmbeddingData:
    assert isinstance(data, EmbeddingData)
    return data
