"""Language models on a GPU: captured steps learn what eager ones do, in less memory."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.spec.model import LoraSpec
from jobs.spec.train import Precision
from jobs.training import token_losses
from jobs.training.config import TrainingConfig
from jobs.training.events import Event, Started, Stepped
from jobs.training.loop import train
from jobs.training.model import packed_attention
from tests import tiny
from tests.builders import language_config, language_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LORA = LoraSpec(type="lora", r=4, dropout=0.0)


def config_of(questions: Path, folder: Path, kind: str = "llama", **fields: Any) -> TrainingConfig:
    base = tiny.save(folder / kind, kind, transformers.AutoModelForCausalLM)
    data = language_data(questions, max_length=64)
    adapter = fields.pop("adapter", None)
    config = language_config(questions, base, data=data, device="cuda", epochs=4.0, **fields)
    model = config.model.model_copy(update={"adapter": adapter})
    return dataclasses.replace(config, model=model)


def curve(config: TrainingConfig) -> tuple[str, list[float]]:
    """How steps run, and the loss of each."""
    events: list[Event] = []
    train(config, events.append)
    mode = next(event.mode for event in events if isinstance(event, Started))
    return mode, [event.loss for event in events if isinstance(event, Stepped)]


def are_close(one: list[float], other: list[float], share: float) -> bool:
    return all(math.isclose(a, b, rel_tol=share) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_samples_attended_apart_teach_what_a_mask_teaches(
    kind: str,
    precision: Precision,
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(questions, tmp_path, kind, precision=precision)
    mode, apart = curve(config)
    monkeypatch.setattr(packed_attention, "is_offered", lambda *_: False)
    _, masked = curve(config)
    assert mode == "captured"
    assert apart != masked  # another kernel
    assert are_close(apart, masked, 0.02)


def test_rows_in_host_memory_bring_the_ends_of_samples_too(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(questions, tmp_path, precision="bf16")
    _, on_device = curve(config)
    monkeypatch.setattr("jobs.training.session.DEVICE_SHARE", 0.0)
    calls, kernel = list[int](), packed_attention._kernel

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return kernel(*arguments, **options)

    monkeypatch.setattr(packed_attention, "_kernel", counted)
    mode, on_host = curve(config)
    assert mode.startswith("eager")
    assert len(calls) >= 2 * len(on_host)
    assert are_close(on_device, on_host, 0.02)


@pytest.mark.parametrize("adapter", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}])
def test_captured_pieces_and_checkpoints_are_eager_whole_logits(
    adapter: LoraSpec | None,
    settings: dict[str, Any],
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(questions, tmp_path, adapter=adapter, **settings)
    whole = dataclasses.replace(config, capture=False, gradient_checkpointing=False)
    _, expected = curve(whole)
    monkeypatch.setattr(token_losses, "PIECE_LOGITS", 50 * tiny.VOCABULARY)
    mode, found = curve(config)
    assert mode == "captured"
    assert are_close(found, expected, 1e-3)
