"""Sharded training, adapters, gradient checkpointing and accumulation learn what DDP learns."""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, EvalSpec, OptimizerSpec, Precision
from jobs.storage import manifest
from jobs.training import checkpoint
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.data.tokens import TokenStore
from jobs.training.engine.step import TrainStep
from jobs.training.events import Evaluated, Event, Stepped
from jobs.training.loop import train
from jobs.training.session import build_session
from jobs.training.world import World
from tests import tiny
from tests.builders import language_config, training_config
from tests.jobs.training import flat_on_cpu, workers

pytestmark = [
    pytest.mark.workers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def two_workers(reviews: Path, base: str, **fields: object) -> TrainingConfig:
    """Five steps on two workers."""
    return training_config(reviews, base, **{"micro_batch_size": 16, **fields})


def curve(config: TrainingConfig, folder: Path, checkpoints: Path | None = None) -> list[float]:
    """Losses on two workers, and that of the evaluation."""
    return judged(workers.run(config, 2, folder, checkpoints))


def judged(events: list[dict]) -> list[float]:
    """Losses of the steps, and those of the evaluations."""
    found = [event["metrics"]["loss"] for event in events if event["event"] == "Evaluated"]
    return [*workers.losses(events), *found]


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_shards_learn_what_replicas_learn(
    strategy: str, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    expected = curve(two_workers(reviews, tiny_model), tmp_path)
    sharded = two_workers(reviews, tiny_model, strategy=strategy)
    assert curve(sharded, tmp_path) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("xlnet", "ddp"), ("big_bird", "ddp"), ("squeezebert", "zero2"), ("squeezebert", "zero3")],
)
def test_several_workers_learn_what_one_learns(
    kind: str, strategy: str, reviews: Path, tmp_path: Path
) -> None:
    """Also weights that no loss depends on, and layers that are run without being called."""
    fields = {"attention_type": "original_full"} if kind == "big_bird" else {}
    base = tiny.save(tmp_path / kind, kind, transformers.AutoModel, **fields)
    events: list[Event] = []
    train(two_workers(reviews, base), events.append)
    expected = [event.loss for event in events if isinstance(event, Stepped)]
    found = curve(two_workers(reviews, base, strategy=strategy), tmp_path)
    assert found[: len(expected)] == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 5


def test_a_sharded_run_resumes_as_replicas_and_back(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Checkpoints hold whole tensors, whatever strategy wrote them."""
    every_step = CheckpointSpec(every=Cadence(1, "step"), keep=9)
    whole = two_workers(reviews, tiny_model, checkpoint=every_step, strategy="zero3")
    expected = curve(whole, tmp_path, tmp_path / "checkpoints")
    for strategy, kept in (("ddp", 2), ("zero2", 3), ("zero3", 4)):
        for path in (tmp_path / "checkpoints").glob("step-*"):
            if int(path.name.split("-")[1]) > kept:
                workers.remove(path)
        again = two_workers(reviews, tiny_model, checkpoint=every_step, strategy=strategy)
        found = curve(again, tmp_path, tmp_path / "checkpoints")
        assert found == pytest.approx(expected[kept:], abs=1e-5)


@pytest.mark.parametrize(("precision", "passes"), [("bf16", 1), ("bf16", 2), ("fp32", 3)])
def test_an_update_in_parts_learns_what_a_whole_one_learns(
    precision: Precision, passes: int, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Three workers, whose evaluations and checkpoints need every part; two go on from there."""
    every_step = Cadence(1, "step")
    config = training_config(
        reviews,
        tiny_model,
        global_batch_size=36,
        micro_batch_size=12 // passes,
        precision=precision,
        optimizer=OptimizerSpec(lr=2e-2, max_grad_norm=0.01),
        eval=EvalSpec(every=Cadence(2, "step")),
        checkpoint=CheckpointSpec(every=every_step, keep=9),
    )
    exact = precision == "fp32"
    tolerance = 1e-5 if exact else 5e-3
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    never, always = (functools.partial(flat_on_cpu.switch_on, size) for size in (2**40, 0))
    expected = judged(workers.run(config, 3, tmp_path, whole, never))
    assert judged(workers.run(config, 3, tmp_path)) == pytest.approx(expected, abs=tolerance)
    found = judged(workers.run(config, 3, tmp_path, parts, always))
    assert found == pytest.approx(expected, abs=tolerance)
    assert drift(parts, whole) < (1e-5 if exact else 0.01)
    for path in parts.glob("step-*"):
        if int(path.name.split("-")[1]) > 3:
            workers.remove(path)
    two = dataclasses.replace(config, micro_batch_size=18 // passes)
    workers.run(two, 2, tmp_path, parts, always)
    assert drift(parts, whole) < (1e-5 if exact else 0.01)


def drift(one: Path, other: Path) -> float:
    """How far weights and moments after step 5 are apart, over how far they came since step 1."""

    def state(folder: Path, step: int) -> torch.Tensor:
        files = sorted(folder.glob(f"step-*{step}/**/*.safetensors"))
        tensors = {
            f"{path.name}/{name}": tensor
            for path in files
            if path.name != "random.safetensors"
            for name, tensor in safetensors.torch.load_file(path).items()
        }
        return torch.cat([tensors[name].flatten().float() for name in sorted(tensors)])

    last = state(other, 5)
    return float((state(one, 5) - last).norm() / (last - state(other, 1)).norm())


def test_gradient_checkpointing_changes_no_number(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    expected = curve(two_workers(reviews, tiny_model), tmp_path)
    slim = two_workers(reviews, tiny_model, gradient_checkpointing=True)
    assert curve(slim, tmp_path) == pytest.approx(expected, abs=1e-6)


def test_accumulation_on_two_workers_changes_no_number(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    expected = curve(two_workers(reviews, tiny_model), tmp_path)
    accumulated = two_workers(reviews, tiny_model, micro_batch_size=4)
    assert curve(accumulated, tmp_path) == pytest.approx(expected, abs=1e-6)


def test_every_evaluation_row_counts_once_on_any_number_of_workers(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """50 rows over 3 workers do not come out even; confusion counts must."""
    metrics = []
    for world in (1, 3):
        config = training_config(
            reviews,
            tiny_model,
            global_batch_size=36,
            micro_batch_size=36 // world,
            metrics=("accuracy", "f1", "mcc"),
        )
        events = workers.run(config, world, tmp_path)
        metrics += [event["metrics"] for event in events if event["event"] == "Evaluated"]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)
    assert metrics[0]["accuracy"] * 50 == pytest.approx(round(metrics[0]["accuracy"] * 50))


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_an_adapter_resumes_exactly(
    strategy: str, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    spec = ModelSpec(base=tiny_model, adapter=LoraSpec(type="lora", r=4, dropout=0.1))
    config = two_workers(
        reviews,
        tiny_model,
        model=spec,
        strategy=strategy,
        eval=EvalSpec(every=Cadence(1, "step")),
        checkpoint=CheckpointSpec(every=Cadence(1, "step"), keep=9),
    )
    folder = tmp_path / "checkpoints"
    expected = curve(config, tmp_path, folder)
    weights = f"{manifest.MODEL_DIR}/adapter_model.safetensors"
    last = manifest.sha256(folder / "step-00000005" / weights)
    for step in (4, 5):
        workers.remove(folder / f"step-0000000{step}")
    found = curve(config, tmp_path, folder)
    assert found[:2] == expected[3:5]
    reference = checkpoint.latest(checkpoint.CheckpointStore(folder))
    assert reference is not None
    assert manifest.sha256(Path(reference.path) / weights) == last


@pytest.mark.parametrize("base", ["classifier", "language"])
def test_an_adapter_in_bf16_stays_near_fp32(
    base: str, reviews: Path, tiny_model: str, questions: Path, tiny_llama: str
) -> None:
    """Frozen weights are 16-bit, trained ones fp32 with 16-bit copies."""
    lora = LoraSpec(type="lora", r=4, dropout=0.0)

    def losses(precision: Precision) -> list[float]:
        fields = {"precision": precision, "optimizer": OptimizerSpec(lr=1e-2)}
        if base == "classifier":
            spec = ModelSpec(base=tiny_model, dropout=0.0, adapter=lora)
            config = training_config(reviews, tiny_model, model=spec, **fields)
        else:
            spec = ModelSpec(base=tiny_llama, task="causal-lm", adapter=lora)
            config = language_config(questions, tiny_llama, model=spec, **fields)
        events: list[Event] = []
        train(config, events.append)
        judged = [e.metrics["loss"] for e in events if isinstance(e, Evaluated)]
        return [*(e.loss for e in events if isinstance(e, Stepped)), *judged]

    exact = losses("fp32")
    assert losses("bf16") == pytest.approx(exact, abs=0.02)
    assert abs(exact[-1] - exact[0]) > 0.005


def test_a_merged_adapter_is_a_plain_model(reviews: Path, tiny_model: str, tmp_path: Path) -> None:
    """What is published gives the scores that training reported, without peft."""
    adapter = LoraSpec(type="lora", r=4, dropout=0.0, merge=True)
    config = training_config(reviews, tiny_model, model=ModelSpec(base=tiny_model, adapter=adapter))
    reference = train(config, lambda _: None, tmp_path)
    folder = Path(reference.path) / manifest.MODEL_DIR
    assert not (folder / "adapter_config.json").exists()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    corpus = load_corpus(config)
    batch = TokenStore(corpus.eval, torch.device("cpu")).gather(torch.arange(len(corpus.eval)), 12)
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model(**batch).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert loss.item() == pytest.approx(reference.metrics["loss"], abs=1e-5)
    again = train(config, lambda _: None, tmp_path)
    assert again == reference


def test_only_the_main_worker_reads_the_last_checkpoint(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Reading it hashes all its files, and on another machine downloads it."""
    log = tmp_path / "ranks"
    config = training_config(reviews, tiny_model, micro_batch_size=16)
    workers.run(config, 2, tmp_path, tmp_path / "checkpoints", functools.partial(log_reads, log))
    assert log.read_text(encoding="utf-8") == "00"  # to resume, and at the end


def log_reads(log: Path) -> None:
    """Make this worker append its rank to a file whenever it reads the newest checkpoint."""
    original = checkpoint.latest

    def latest(*arguments: Any) -> Any:
        with log.open("a", encoding="utf-8") as handle:
            handle.write(os.environ["RANK"])
        return original(*arguments)

    checkpoint.latest = latest  # type: ignore[assignment]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_checkpointed_layers_keep_random_states_only_for_dropout(
    dropout: float, reviews: Path, tiny_model: str
) -> None:
    """Without dropout a step could be captured; with it, what is computed again has its masks."""

    def losses(*, is_checkpointed: bool) -> tuple[TrainStep, list[float]]:
        config = training_config(
            reviews,
            tiny_model,
            model=ModelSpec(base=tiny_model, dropout=dropout),
            gradient_checkpointing=is_checkpointed,
        )
        session = build_session(config, load_corpus(config), World(0, 1, torch.device("cpu")))
        session.engine.seek(0)
        session.engine.launch(0, 3)
        return session.engine.step, [step.loss for step in session.engine.collect()]

    _, expected = losses(is_checkpointed=False)
    step, found = losses(is_checkpointed=True)
    assert step.keeps_random_states == (dropout > 0)
    assert found == pytest.approx(expected, abs=1e-6)
