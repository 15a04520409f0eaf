"""Engine with torch, on a CPU or a GPU. In fp32 it is the reference for all other engines."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.spec.serve import EngineName
from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model import pooling
from jobs.training.model.pooling import Pooling
from jobs.training.model.precision import autocast
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Matrix, Padding, PendingBatch, Places, Row, Tokenizer
from serve.engines.engine import ROW_HEAD, Head, Shape, usual_widths

NAMES: dict[Precision, EngineName] = {
    "bf16": "torch-bf16",
    "fp16": "torch-fp16",
    "fp32": "torch-fp32",
    "tf32": "torch-fp32",
}


class PooledModel(torch.nn.Module):
    """A model whose logits are its last hidden states, pooled into a vector for each row."""

    def __init__(self, model: Any, pooling: Pooling) -> None:
        super().__init__()
        self.model, self.pooling, self.config = model, pooling, model.config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> Any:
        """Returns an output of transformers with `logits`, [rows, n].

        Args:
            input_ids: [rows, width].
            attention_mask: [rows, width].
            token_type_ids: [rows, width], for models with token types.
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        vectors = self.pooling.pool(output.last_hidden_state, attention_mask)
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=vectors)


class HiddenTokenModel(torch.nn.Module):
    """A masked language model whose head reads the hidden tokens only.

    The head is the largest matrix product of a small model, and reads each token by itself.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self._places: torch.Tensor | None = None
        model.base_model.register_forward_hook(self._pick)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, places: torch.Tensor
    ) -> Any:
        """Returns an output of transformers with `logits`, [hidden, vocabulary].

        Args:
            input_ids: [rows, width].
            attention_mask: [rows, width].
            places: Places of the hidden tokens among all tokens of the batch, [hidden].
        """
        self._places = places
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return transformers.modeling_outputs.MaskedLMOutput(logits=output.logits.flatten(0, 1))

    def _pick(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        """Replaces the last hidden states, [rows, width, n], by [1, hidden, n]."""
        name = next(iter(output))
        output[name] = output[name].flatten(0, 1)[self._places].unsqueeze(0)
        return output


def load_classifier(folder: Path, head: Head = ROW_HEAD) -> torch.nn.Module:
    """Reads a published model in fp32, whose outputs have the logits of each row, or token.

    The outputs of a masked language model have those of each hidden token.

    A folder that says how vectors of tokens are pooled holds a model of vectors; any other holds a
    classifier.
    """
    pooled = pooling.read(folder)
    if pooled is not None:
        bare = transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
        return PooledModel(bare, pooled).eval()
    auto = getattr(transformers, head.auto_class)
    model: torch.nn.Module = auto.from_pretrained(folder, use_safetensors=True)
    return HiddenTokenModel(model).eval() if head.is_per_hidden else model.eval()


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
        self,
        folder: Path,
        tokenizer: Tokenizer,
        precision: Precision,
        device: Device,
        threads: int,
        head: Head = ROW_HEAD,
    ) -> None:
        self.name = NAMES[precision]
        if device == "cpu":
            torch.set_num_threads(threads)
        self._device, self._precision = torch.device(device), precision
        self._model, self._head = load_classifier(folder, head).to(self._device), head
        self._padding = Padding.of(tokenizer)
        has_types = "token_type_ids" in tokenizer.input_names
        self._has_types = has_types and not head.is_per_hidden

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Returns shapes of the usual widths, which are to be run once."""
        return usual_widths(longest)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the logits."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Pads a batch; the returned function computes its logits."""
        arrays = self._padding.apply(rows)
        if not self._head.is_per_hidden:
            return lambda: self._forward(arrays)
        places = self._padding.hidden(rows, arrays[0].shape[1])
        return lambda: self._forward(arrays, places)

    @torch.inference_mode()
    def _forward(self, arrays: Sequence[Matrix], places: Places | None = None) -> Logits:
        ids, mask, types = (
            torch.from_numpy(array).to(self._device, non_blocking=True) for array in arrays
        )
        extra = {"token_type_ids": types} if self._has_types else {}
        if places is not None:
            extra["places"] = torch.from_numpy(places).to(self._device)
        with autocast(self._precision, self._device):
            logits = self._model(input_ids=ids, attention_mask=mask, **extra).logits
        if self._head.is_per_token:
            logits = logits[mask.bool()]
        return logits.float().cpu().numpy()  # type: ignore[no-any-return]
