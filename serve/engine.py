"""Texts to labels with a published model, on one device. No HTTP and no Ray."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from jobs.spec.train import Precision
from jobs.training import manifest
from jobs.training.config import Device
from jobs.training.model.precision import autocast
from serve.version import ModelVersion

Text = tuple[str, ...]
"""One text, or a pair."""


@dataclass(frozen=True, slots=True)
class Label:
    """The best label of a text and its probability."""

    label: str
    score: float


class Engine:
    """A loaded model that answers batches; raises CheckpointError when its files were altered."""

    def __init__(self, version: ModelVersion, *, precision: Precision, device: Device) -> None:
        manifest.verify(Path(version.path))
        self._version = version
        self._precision = precision
        self._device = torch.device(device)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            version.path, use_safetensors=True
        )
        self._model = model.to(self._device).eval()
        self.predict([("warm-up",) * (2 if version.is_pair else 1)])

    @torch.inference_mode()
    def predict(self, texts: Sequence[Text]) -> list[Label]:
        """Label each text; neighbours are padded but do not change each other's scores."""
        first = [text[0] for text in texts]
        second = [text[1] for text in texts] if self._version.is_pair else None
        inputs = self._tokenizer(
            first,
            second,
            truncation=True,
            max_length=self._version.max_length,
            padding=True,
            return_tensors="pt",
        ).to(self._device)
        with autocast(self._precision, self._device):
            logits = self._model(**inputs).logits
        scores, best = logits.float().softmax(dim=-1).max(dim=-1)
        labels = self._model.config.id2label
        return [Label(labels[i], s) for i, s in zip(best.tolist(), scores.tolist(), strict=True)]
