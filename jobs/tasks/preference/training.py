"""Preference optimisation in torch: two answers are scored in one pass, beside their base's."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.causal_lm import rows as causal_rows
from jobs.tasks.causal_lm.training import next_tokens
from jobs.tasks.preference import losses, rows
from jobs.tasks.preference.rows import REJECTED
from jobs.tasks.preference.task import Loss, PreferenceData
from jobs.training import token_losses
from jobs.training.data import chat_template
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK
from jobs.training.task import Batch, TaskTraining
from jobs.training.token_losses import WHOLE, OutputLayer
from jobs.training.token_training import LARGEST_EXPONENT


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerLosses:
    """What a model gives the answers of a batch, each (2, rows): chosen and rejected."""

    sums: torch.Tensor
    """Cross-entropy of the tokens of an answer, summed: its negative log-probability."""
    tokens: torch.Tensor
    """Number of these tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreferenceTraining(TaskTraining):
    """A reward for each answer: how much likelier it became than under the base."""

    beta: float = 0.1
    kind: Loss = "sigmoid"
    label_smoothing: float = 0.0
    output_layer: OutputLayer = WHOLE

    is_causal = True
    has_references = True

    def for_run(
        self, data: DataSpec, labels: NDArray[np.generic], label_names: Sequence[str], model: Any
    ) -> "PreferenceTraining":
        """Returns the half with a job's loss."""
        own = _own(data)
        return dataclasses.replace(
            self, beta=own.beta, kind=own.loss, label_smoothing=own.label_smoothing
        )

    def tried(self, model: Any, batch: Batch, most_targets: int) -> "PreferenceTraining":
        """Returns the half that scores tokens in pieces, if the model allows it."""
        layer = token_losses.find(model, *next_tokens(batch))
        return dataclasses.replace(self, output_layer=layer)

    @property
    def remark(self) -> str:
        """Why a step takes more memory than forecast; empty if it does not."""
        return self.output_layer.remark

    def prepare(self, tokenizer: Any, data: DataSpec) -> None:
        """Give a tokenizer without a chat template the plain one."""
        if _own(data).prompt is None and tokenizer.chat_template is None:
            tokenizer.chat_template = chat_template.PLAIN_TEMPLATE

    def key(self, data: DataSpec, label_names: Sequence[str]) -> dict[str, Any]:
        """The columns."""
        own = _own(data)
        return {name: getattr(own, name) for name in ("prompt", "messages", "chosen", "rejected")}

    def encode(
        self,
        source: SourceSpec,
        data: DataSpec,
        tokenizer: Any,
        label_names: Sequence[str],
        progress: Progress | None,
    ) -> pa.Table:
        """Token ids and loss masks of both answers of every row. Raises DataError."""
        return rows.encode(source, _own(data), tokenizer, progress)

    def end_tokens(self, table: pa.Table) -> tuple[int, ...]:
        """Tokens that end an answer in the training rows."""
        return causal_rows.end_tokens(table)

    def left_out(self, table: pa.Table) -> int:
        """Training rows with equal answers, or with one beyond max_length."""
        return causal_rows.left_out(table)

    def cut(self, table: pa.Table) -> int:
        """Rows of which what lies beyond max_length is cut off."""
        return causal_rows.cut(table)

    def reference(self, model: Any, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the chosen and the rejected answer, (rows, 2)."""
        return -self._answers(model, batch).sums.T

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """The loss of each row's margin times its weight, summed."""
        return (self._losses(self._answers(model, batch), batch) * weights).sum()

    def logits(self, model: Any, batch: Batch) -> torch.Tensor:
        """Those of the chosen answers, (rows, tokens, vocabulary) in fp32."""
        ids, mask = batch[INPUT_IDS], batch["attention_mask"]
        logits: torch.Tensor = model(input_ids=ids, use_cache=False, attention_mask=mask).logits
        return logits.float()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of a token of each chosen answer, (rows, 1)."""
        return self.output_layer.predict(model, *next_tokens(batch)).row_means()

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """Loss, rows whose chosen answer has the larger reward, margins, rows; chosen tokens."""
        found = self._answers(model, batch)
        ratios = -found.sums - batch["labels"].T
        margins = self.beta * (ratios[0] - ratios[1])
        of_rows = torch.stack(
            [
                self._losses(found, batch),
                (margins > 0).float(),
                margins,
                torch.ones_like(margins),
                found.sums[0],
                found.tokens[0],
            ]
        )
        return (of_rows.double() * counts).sum(dim=1)

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Rewards, the perplexity of chosen answers, and the mean loss of a row."""
        loss, right, margins, count, chosen, tokens = sums.tolist()
        return {
            "reward_accuracy": right / count,
            "reward_margin": margins / count,
            "perplexity": math.exp(min(chosen / max(1.0, tokens), LARGEST_EXPONENT)),
            "loss": loss / count,
        }

    def _losses(self, found: AnswerLosses, batch: Batch) -> torch.Tensor:
        ratios = -found.sums - batch["labels"].T
        if self.kind == "ipo":
            ratios = ratios / found.tokens
        return losses.of_margins(
            ratios[0] - ratios[1],
            loss=self.kind,
            beta=self.beta,
            label_smoothing=self.label_smoothing,
        )

    def _answers(self, model: Any, batch: Batch) -> AnswerLosses:
        """Scores both answers of each row in one pass."""
        rejected = {
            INPUT_IDS: batch[f"{REJECTED}{INPUT_IDS}"],
            LOSS_MASK: batch[f"{REJECTED}{LOSS_MASK}"],
            "attention_mask": batch[f"{REJECTED}{INPUT_IDS}_mask"],
        }
        both = {name: torch.cat([batch[name], other]) for name, other in rejected.items()}
        found = self.output_layer.predict(model, *next_tokens(both))
        return AnswerLosses(found.losses.sum(1).view(2, -1), found.mask.sum(1).view(2, -1))


TRAINING = PreferenceTraining()


def _own(data: DataSpec) -> PreferenceData:
    assert isinstance(data, PreferenceData)
    return data
