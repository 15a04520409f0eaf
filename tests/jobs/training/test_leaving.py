"""Training that is asked to leave saves first, and goes on as if it had not been."""

from pathlib import Path

from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec
from jobs.storage import manifest
from jobs.training.events import Event, Interrupted, Started, Stepped
from jobs.training.loop import train
from tests.builders import training_config


def test_it_leaves_with_a_checkpoint_and_resumes_exactly(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    seldom = CheckpointSpec(every=Cadence(1000, "step"))
    config = training_config(reviews, tiny_model, epochs=2.0, checkpoint=seldom)
    whole = train(config, lambda _: None, tmp_path / "whole")
    events: list[Event] = []

    def leave() -> bool:
        return sum(isinstance(event, Stepped) for event in events) >= 3

    train(config, events.append, tmp_path / "cut", leave)
    left = next(event.step for event in events if isinstance(event, Interrupted))
    assert 3 <= left < whole.step
    again: list[Event] = []
    resumed = train(config, again.append, tmp_path / "cut")
    assert next(event.first_step for event in again if isinstance(event, Started)) == left
    weights = f"{manifest.MODEL_DIR}/model.safetensors"
    same = [manifest.sha256(Path(found.path) / weights) for found in (whole, resumed)]
    assert same[0] == same[1]
