"""The engine against plain PyTorch, Hugging Face's Trainer and peft used by hand."""

import math
from collections.abc import Iterator
from pathlib import Path

import peft
import pytest
import torch
import transformers

from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus, load_corpus
from jobs.training.data import batches
from jobs.training.data.batches import FILLER
from jobs.training.engine.learning_rate import rate_at
from jobs.training.events import Event, Stepped
from jobs.training.loop import train
from jobs.training.model import base
from tests.builders import MINILM, training_config

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
STEPS = 50


def fifty_steps(reviews: Path, weights: str = MINILM, **fields: object) -> TrainingConfig:
    """Fifty steps over small batches with an uneven last one in each epoch."""
    values = {
        "epochs": STEPS / 7,
        "global_batch_size": 24,
        "micro_batch_size": 8,
        "optimizer": OptimizerSpec(lr=1e-4),
    }
    return training_config(reviews, weights, **{**values, **fields})


def engine_losses(config: TrainingConfig) -> list[float]:
    """Losses of the engine."""
    return [event.loss for event in engine_steps(config)]


def engine_steps(config: TrainingConfig) -> list[Stepped]:
    """Steps of the engine."""
    events: list[Event] = []
    train(config, events.append)
    return [event for event in events if isinstance(event, Stepped)]


def same_batches(config: TrainingConfig, corpus: Corpus) -> Iterator[dict[str, torch.Tensor]]:
    """The batches that the engine sees, padded to their longest row, as plain tensors."""
    tokens = corpus.train
    for epoch in range(math.ceil(config.epochs)):
        order = batches.epoch_batches(tokens.lengths, config.global_batch_size, config.seed, epoch)
        for rows in order:
            rows = rows[rows != FILLER]
            width = int(tokens.lengths[rows].max())
            ids = torch.zeros(len(rows), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(rows):
                start, end = tokens.offsets[row], tokens.offsets[row + 1]
                ids[place, : end - start] = torch.tensor(tokens.columns["input_ids"][start:end])
                mask[place, : end - start] = 1
            labels = torch.tensor(tokens.labels[rows])
            yield {"input_ids": ids, "attention_mask": mask, "labels": labels}


def seeded_model(config: TrainingConfig, corpus: Corpus) -> torch.nn.Module:
    """The model with the head that the engine draws."""
    torch.manual_seed(config.seed)
    return base.load_model(config.model, corpus.label_names).model


def plain_losses(config: TrainingConfig, model: torch.nn.Module, corpus: Corpus) -> list[float]:
    """Losses of a training loop in plain PyTorch."""
    return [loss for loss, _, _ in plain_steps(config, model, corpus)]


def plain_steps(
    config: TrainingConfig, model: torch.nn.Module, corpus: Corpus
) -> list[tuple[float, float, float]]:
    """Loss, gradient norm and learning rate of a loop in plain PyTorch, without any tricks."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
        ]
    )
    found = []
    for step, batch in zip(range(STEPS), same_batches(config, corpus), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, STEPS, config.optimizer.lr, config.lr_schedule)
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), norm.item(), optimizer.param_groups[0]["lr"]))
    return found


@pytest.mark.parametrize(
    ("weights", "lr"), [("drawn", 5e-3), pytest.param("real", 1e-4, marks=pytest.mark.slow)]
)
def test_the_curve_is_that_of_a_plain_loop(
    weights: str, lr: float, reviews: Path, request: pytest.FixtureRequest
) -> None:
    """Accumulation, filler rows, widths and the guarded update change nothing.

    The slow one catches errors that grow with depth or with the scale of trained weights.
    """
    base = MINILM if weights == "real" else request.getfixturevalue("tiny_model")
    config = fifty_steps(reviews, base, optimizer=OptimizerSpec(lr=lr))
    corpus = load_corpus(config)
    expected = plain_steps(config, seeded_model(config, corpus), corpus)
    steps = engine_steps(config)
    found = [step.loss for step in steps]
    assert len(found) == STEPS
    assert found == pytest.approx([loss for loss, _, _ in expected], abs=1e-5)
    assert [s.gradient_norm for s in steps] == pytest.approx([n for _, n, _ in expected], rel=1e-3)
    assert [step.lr for step in steps] == [lr for _, _, lr in expected]
    check_moves(found)
    assert weights == "drawn" or sum(found[-5:]) < sum(found[:5]) / 2


@pytest.mark.parametrize(
    ("weights", "lr"), [("drawn", 2e-2), pytest.param("real", 2e-3, marks=pytest.mark.slow)]
)
def test_lora_is_that_of_peft_by_hand(
    weights: str, lr: float, reviews: Path, request: pytest.FixtureRequest
) -> None:
    """The slow one catches errors that grow with depth or with the scale of trained weights."""
    adapter = LoraSpec(type="lora", r=4, alpha=8, dropout=0.0)
    base = MINILM if weights == "real" else request.getfixturevalue("tiny_model")
    spec = ModelSpec(base=base, dropout=0.0, adapter=adapter)
    config = fifty_steps(reviews, model=spec, optimizer=OptimizerSpec(lr=lr))
    corpus = load_corpus(config)
    lora = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear"
    )
    by_hand = peft.get_peft_model(seeded_model(config, corpus), lora)
    expected = plain_losses(config, by_hand, corpus)
    assert engine_losses(config) == pytest.approx(expected, abs=1e-5)
    check_moves(expected)
    assert weights == "drawn" or expected[-1] < expected[0] / 2


def check_moves(losses: list[float]) -> None:
    """Two equal curves show something only if the loss changes from step to step."""
    assert max(losses) - min(losses) > 1e-3


def test_the_curve_is_that_of_the_usual_trainer(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Hugging Face's Trainer with the same batches, schedule, clipping and decay."""
    config = fifty_steps(reviews, tiny_model, optimizer=OptimizerSpec(lr=1e-3, weight_decay=0.0))
    corpus = load_corpus(config)
    given = list(same_batches(config, corpus))[:STEPS]
    found: list[float] = []

    class Recorder(transformers.Trainer):
        """Takes the batches as they are and keeps every loss."""

        def get_train_dataloader(self) -> list[dict[str, torch.Tensor]]:
            return given

        def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
            loss = super().training_step(*args, **kwargs)
            found.append(loss.item())
            return loss

    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        learning_rate=1e-3,
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = seeded_model(config, corpus)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_at(step, STEPS, 1.0, config.lr_schedule)
    )
    recorder = Recorder(
        model=model, args=settings, train_dataset=given, optimizers=(optimizer, schedule)
    )
    recorder.train()
    assert engine_losses(config) == pytest.approx(found, abs=1e-5)
