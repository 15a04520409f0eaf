"""A session that starts over trains as a new one would, to the last bit."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import LrScheduleSpec, OptimizerSpec
from jobs.training import restart
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.events import Evaluated, Event, Stepped
from jobs.training.loop import train
from jobs.training.restart import Kept
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests import tiny
from tests.builders import language_config, training_config
from tests.jobs.training import flat_on_cpu

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


CPU = World(0, 1, torch.device("cpu"))


def results(config: TrainingConfig, kept: Kept | None = None) -> list[tuple[float, ...]]:
    """Losses, rates and norms of all steps, then the metrics of all evaluations."""
    events: list[Event] = []
    train(config, events.append, kept=kept)
    steps = [(e.loss, e.lr, e.gradient_norm) for e in events if isinstance(e, Stepped)]
    return [*steps, *(tuple(e.metrics.values()) for e in events if isinstance(e, Evaluated))]


def starts_over(
    monkeypatch: pytest.MonkeyPatch, config: TrainingConfig, **numbers: Any
) -> tuple[bool, bool]:
    """Whether another training starts over in the session of a first one, and is as a new one."""
    other = dataclasses.replace(config, **numbers)
    expected, kept, built = results(other), Kept(), list[TrainingConfig]()

    def build(config: TrainingConfig, *arguments: Any, **options: Any) -> Any:
        built.append(config)
        return own(config, *arguments, **options)

    own = restart.build_session
    monkeypatch.setattr(restart, "build_session", build)
    first = results(config, kept)
    found = results(other, kept)
    again = results(config, kept)
    monkeypatch.setattr(restart, "build_session", own)
    assert first == again != found
    return len(built) == 1, found == expected


NUMBERS: dict[str, Any] = {
    "optimizer": OptimizerSpec(lr=3e-4, weight_decay=0.3),
    "lr_schedule": LrScheduleSpec(type="cosine", warmup_ratio=0.3),
    "seed": 8,
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_with_dropout_and_other_numbers(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    model = ModelSpec(base=tiny_model)  # with its own dropout
    config = training_config(reviews, tiny_model, precision=precision, model=model)
    assert starts_over(monkeypatch, config, **NUMBERS) == (True, True)


@pytest.mark.parametrize("name", ["adafactor", "sgd", "muon"])
def test_with_every_optimizer(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = OptimizerSpec(name=name, lr=1e-3, weight_decay=0.0)
    other = OptimizerSpec(name=name, lr=3e-4, weight_decay=0.3)
    config = training_config(reviews, tiny_model, optimizer=first)
    assert starts_over(monkeypatch, config, optimizer=other) == (True, True)


def test_with_flat_weights(reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flat_on_cpu.in_test(monkeypatch)
    config = training_config(reviews, tiny_model, precision="bf16")
    assert starts_over(monkeypatch, config, **NUMBERS) == (True, True)


def test_with_an_adapter_whose_dropout_draws(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny.save(tmp_path / "llama", "llama", transformers.AutoModelForCausalLM)
    config = language_config(questions, base)
    adapter = LoraSpec(type="lora", r=4, dropout=0.1)
    model = config.model.model_copy(update={"adapter": adapter})
    config = dataclasses.replace(config, model=model)
    assert starts_over(monkeypatch, config, optimizer=OptimizerSpec(lr=3e-3)) == (True, True)
    assert starts_over(monkeypatch, config, seed=8) == (False, True)


@pytest.mark.parametrize("field", ["epochs", "head_lr"])
def test_what_needs_a_new_session_gets_one(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    config = training_config(reviews, tiny_model, optimizer=OptimizerSpec(lr=1e-3, head_lr=1e-2))
    changes: dict[str, Any] = {
        "epochs": 2.0,
        "optimizer": OptimizerSpec(lr=2e-3, head_lr=1e-2),
    }
    name = "optimizer" if field == "head_lr" else field
    assert starts_over(monkeypatch, config, **{name: changes[name]}) == (False, True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_captured_steps_start_over(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A weight decay that is a number in the graph needs a new session."""
    first = OptimizerSpec(name=name, lr=1e-3, weight_decay=0.0)
    config = training_config(reviews, tiny_model, optimizer=first, device="cuda")
    for decay in (0.0, 0.3):
        other = OptimizerSpec(name=name, lr=3e-4, weight_decay=decay)
        is_over, is_equal = starts_over(monkeypatch, config, optimizer=other)
        assert is_equal
        assert is_over == (name == "adamw" or decay == 0.0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_replaces_its_buffers_is_built_anew(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Such as frequencies that are computed again for rows beyond the model's positions."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    fields = {"max_position_embeddings": 16, "rope_parameters": rope}
    base = tiny.save(tmp_path / "llama", "llama", transformers.AutoModelForCausalLM, **fields)
    config = language_config(questions, base, precision=precision)
    assert starts_over(monkeypatch, config, optimizer=OptimizerSpec(lr=3e-3)) == (False, True)


def test_all_that_training_changes_is_set_back(reviews: Path, tiny_model: str) -> None:
    config, kept = training_config(reviews, tiny_model, precision="bf16"), Kept()
    built = build_session(config, load_corpus(config), CPU)
    buffers = [torch.full((3,), 2.0), torch.zeros(2, dtype=torch.int64)]
    for number, buffer in enumerate(buffers):
        built.model.register_buffer(f"statistics_{number}", buffer)
    first = contents(built)
    kept.keep(built)
    with torch.no_grad():
        for tensor in (*contents(built, copied=False), *buffers):
            tensor.add_(3)
    torch.rand(5)
    built.batch_plan.seek(2)
    found = kept.restarted(dataclasses.replace(config, **{**NUMBERS, "seed": config.seed}), CPU)
    assert found is not None
    assert all(map(torch.equal, contents(found), first))
    assert [buffer.tolist() for buffer in buffers] == [[2.0] * 3, [0, 0]]
    assert found.batch_plan.host_step == 0
    assert found.batch_plan.rate(1) != built.config.optimizer.lr
    assert (found.config.optimizer, built.config.optimizer) == (
        NUMBERS["optimizer"],
        config.optimizer,
    )


def contents(session: Session, *, copied: bool = True) -> list[torch.Tensor]:
    """Weights and their copies, the optimizer's state, what scales the loss, and random states."""
    update = session.update
    found = [each for w in update.weights for each in (w.target, *update.state(w).values())]
    found += [update.loss_scale, update.good_steps, update.halted]
    found = [each.detach() for each in found]
    if not copied:
        return found
    sources = [weight.source.detach() for weight in update.weights]
    return [each.clone() for each in (*found, *sources, torch.get_rng_state())]


def test_after_a_failure_nothing_is_kept(reviews: Path, tiny_model: str) -> None:
    config, kept = training_config(reviews, tiny_model), Kept()

    def fail(event: Event) -> None:
        if isinstance(event, Stepped):
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        train(config, fail, kept=kept)
    assert kept.restarted(config, CPU) is None


@pytest.mark.parametrize("stops", [True, False])
def test_a_training_that_is_left_early_leaves_its_session(
    reviews: Path, tiny_model: str, *, stops: bool
) -> None:
    """By the order to leave, or by Ray Tune, which raises SystemExit in a report."""
    config, kept = training_config(reviews, tiny_model), Kept()

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and stops:
            raise SystemExit

    with pytest.raises(SystemExit) if stops else contextlib.nullcontext():
        train(config, stop, leave=None if stops else lambda: True, kept=kept)
    assert kept.restarted(config, CPU) is not None
    assert results(config, kept) == results(config)


def test_weights_that_are_too_large_to_keep_twice_are_not_kept(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "MEMORY_SHARE", 1e-12)
    config, kept = training_config(reviews, tiny_model), Kept()
    train(config, lambda _: None, kept=kept)
    assert kept.restarted(config, CPU) is None
