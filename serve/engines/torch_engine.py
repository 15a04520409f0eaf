"""Engine with torch, on a CPU or a GPU. In fp32 it is the reference for all other engines."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers

from jobs.spec.serve import EngineName
from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.precision import autocast
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Matrix, Padding, PendingBatch, Row, Tokenizer
from serve.engines.engine import Shape, usual_widths

NAMES: dict[Precision, EngineName] = {
    "bf16": "torch-bf16",
    "fp16": "torch-fp16",
    "fp32": "torch-fp32",
    "tf32": "torch-fp32",
}


def load_classifier(folder: Path) -> torch.nn.Module:
    """Reads the published classifier in fp32."""
    model: torch.nn.Module = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, use_safetensors=True
    )
    return model.eval()


@contextlib.contextmanager
def quiet_tracing() -> Iterator[None]:
    """Suppresses the tracer's warnings about branches on shapes.

    The acceptance check compares the traced graph with the model anyway.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TorchEngine:
    """Runs padded batches; on a CPU with one thread for each core of the replica."""

    is_packed, ahead = False, 0

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, precision: Precision, device: Device, threads: int
    ) -> None:
        self.name = NAMES[precision]
        if device == "cpu":
            torch.set_num_threads(threads)
        self._device, self._precision = torch.device(device), precision
        self._model = load_classifier(folder).to(self._device)
        self._padding = Padding.of(tokenizer)
        self._has_types = "token_type_ids" in tokenizer.input_names

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Returns shapes of the usual widths, which are to be run once."""
        return usual_widths(longest)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns logits, [rows, labels]."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Pads a batch; the returned function computes its logits, [rows, labels]."""
        arrays = self._padding.apply(rows)
        return lambda: self._forward(arrays)

    @torch.inference_mode()
    def _forward(self, arrays: Sequence[Matrix]) -> Logits:
        ids, mask, types = (
            torch.from_numpy(array).to(self._device, non_blocking=True) for array in arrays
        )
        extra = {"token_type_ids": types} if self._has_types else {}
        with autocast(self._precision, self._device):
            logits = self._model(input_ids=ids, attention_mask=mask, **extra).logits
        return logits.float().cpu().numpy()  # type: ignore[no-any-return]
