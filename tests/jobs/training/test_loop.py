"""The training loop: the same curve in every layout, exact resume, and refusing nonsense."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jobs.errors import CheckpointError, TrainingError
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, EvalSpec, OptimizerSpec
from jobs.storage import files, manifest
from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.events import Evaluated, Event, Saved, Started, Stepped
from jobs.training.loop import train
from tests.builders import MINILM, eventually, training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def losses(config: TrainingConfig) -> list[float]:
    """The loss of every optimizer step of one process."""
    events: list[Event] = []
    train(config, events.append)
    return [event.loss for event in events if isinstance(event, Stepped)]


def torchrun(config: TrainingConfig, folder: Path, workers: int) -> list[float]:
    """The loss of every step of several plain processes."""
    path = folder / "training.json"
    path.write_bytes(TRAINING_CONFIG.dump_json(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={workers}", "-m", "jobs.training", str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if line["event"] == "Stepped"]


@pytest.mark.workers
def test_the_loss_curve_does_not_depend_on_the_layout(reviews: Path, tmp_path: Path) -> None:
    """Earns its half minute: the sweep's assumption that placement does not change learning."""
    whole = training_config(reviews, MINILM, optimizer=OptimizerSpec(lr=1e-4))
    reference = losses(whole)
    accumulated = losses(
        training_config(reviews, MINILM, optimizer=whole.optimizer, micro_batch_size=8)
    )
    spread = torchrun(
        training_config(reviews, MINILM, optimizer=whole.optimizer, micro_batch_size=16),
        tmp_path,
        workers=2,
    )
    assert len(reference) == 5
    assert reference[-1] < reference[0]
    assert accumulated == pytest.approx(reference, abs=1e-5)
    assert spread == pytest.approx(reference, abs=1e-5)


def test_an_uneven_last_batch_counts_each_sample_once(reviews: Path, tiny_model: str) -> None:
    """160 rows over batches of 48 leave 16; micro batches of 48 and of 4 must agree on it."""
    fields = {"global_batch_size": 48}
    whole = losses(training_config(reviews, tiny_model, micro_batch_size=48, **fields))
    small = losses(training_config(reviews, tiny_model, micro_batch_size=4, **fields))
    assert len(whole) == 4
    assert small == pytest.approx(whole, abs=1e-5)


def test_training_resumes_bit_identically(reviews: Path, tiny_model: str, tmp_path: Path) -> None:
    config = training_config(
        reviews,
        tiny_model,
        model=training_config(reviews, tiny_model).model.model_copy(update={"dropout": 0.1}),
        checkpoint=CheckpointSpec(every=Cadence(1, "step"), keep=9),
    )
    whole = train(config, lambda _: None, tmp_path / "whole")

    class Killed(BaseException):
        """Stands for a lost process."""

    def stop_after_two(event: Event) -> None:
        if isinstance(event, Saved) and event.step == 2:
            raise Killed

    with pytest.raises(Killed):
        train(config, stop_after_two, tmp_path / "cut")
    # the thread that writes the third step's does not die with this exception
    third = tmp_path / "cut/step-00000003"
    assert eventually(third.exists, within_s=10)
    events: list[Event] = []
    resumed = train(config, events.append, tmp_path / "cut")
    assert next(e for e in events if isinstance(e, Started)).first_step == 3
    name = f"{manifest.MODEL_DIR}/model.safetensors"
    assert manifest.sha256(Path(whole.path) / name) == manifest.sha256(Path(resumed.path) / name)
    assert resumed.metrics == whole.metrics


def test_a_torn_checkpoint_is_passed_over(reviews: Path, tiny_model: str, tmp_path: Path) -> None:
    config = training_config(
        reviews, tiny_model, checkpoint=CheckpointSpec(every=Cadence(2, "step"), keep=9)
    )
    last = train(config, lambda _: None, tmp_path)
    weights = Path(last.path) / manifest.MODEL_DIR / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    events: list[Event] = []
    train(config, events.append, tmp_path)
    assert next(e for e in events if isinstance(e, Started)).first_step == 4


def test_only_the_newest_checkpoints_are_kept(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    config = training_config(
        reviews, tiny_model, checkpoint=CheckpointSpec(every=Cadence(1, "step"), keep=2)
    )
    train(config, lambda _: None, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_checkpoints_take_no_more_room_than_they_may(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """The newest and the best stay, then what still fits."""

    def kept(most: int | None, folder: Path) -> list[int]:
        every, judged = Cadence(1, "step"), EvalSpec(every=Cadence(2, "step"))
        spec = CheckpointSpec(every=every, keep=9, max_size=most)  # type: ignore[arg-type]
        config = training_config(reviews, tiny_model, checkpoint=spec, eval=judged)
        train(config, lambda _: None, folder)
        return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())

    whole = tmp_path / "whole"
    assert kept(None, whole) == [1, 2, 3, 4, 5]
    size = max(files.size_of(path) for path in whole.iterdir())
    scores = {n: accuracy_of(whole / f"step-{n:08d}") for n in (5, 4, 2)}
    best = max(scores, key=lambda n: scores[n])
    found = kept(int(2.5 * size), tmp_path / "two")
    assert len(found) == 2
    assert {5, best} <= set(found)
    assert kept(int(1.5 * size), tmp_path / "one") == [5]
    with pytest.raises(CheckpointError, match=r"takes .*max_size is .*; set a larger size"):
        kept(size // 2, tmp_path / "none")
    assert not list((tmp_path / "none").iterdir())


def accuracy_of(checkpoint: Path) -> float:
    """As it was judged."""
    return float(manifest.read(checkpoint)["metrics"]["accuracy"])


def test_evaluation_happens_as_often_as_asked(reviews: Path, tiny_model: str) -> None:
    events: list[Event] = []
    train(
        training_config(reviews, tiny_model, eval=EvalSpec(every=Cadence(2, "step"))),
        events.append,
    )
    assert [e.step for e in events if isinstance(e, Evaluated)] == [2, 4, 5]


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        return torch.full((32,), float("nan"), requires_grad=True)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", broken)
    with pytest.raises(TrainingError, match="the loss of step 1 is nan; its training rows"):
        train(training_config(reviews, tiny_model), lambda _: None)


def test_the_tiny_model_learns(reviews: Path, tiny_model: str) -> None:
    events: list[Event] = []
    train(
        training_config(reviews, tiny_model, epochs=6.0, optimizer=OptimizerSpec(lr=3e-3)),
        events.append,
    )
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert last.metrics["accuracy"] > 0.9
