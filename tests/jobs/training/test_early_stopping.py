"""Early stopping: when training ends, whose weights are kept, and that a resume changes nothing."""

import dataclasses
from pathlib import Path

import pytest

from jobs.spec.quantities import Cadence
from jobs.spec.task import LOSS, Metric
from jobs.spec.train import CheckpointSpec, EarlyStoppingSpec, EvalSpec, OptimizerSpec
from jobs.storage import files, manifest
from jobs.training.best import BestEvaluation
from jobs.training.config import TrainingConfig
from jobs.training.events import (
    BestKept,
    CheckpointRef,
    Evaluated,
    Event,
    Saved,
    Started,
    Stepped,
)
from jobs.training.loop import train
from tests.builders import eventually, training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

WEIGHTS = f"{manifest.MODEL_DIR}/model.safetensors"


@pytest.mark.parametrize(
    ("metric", "values", "best", "ends_at"),
    [
        (Metric("f1"), [0.1, 0.3, 0.3, 0.2, 0.4], 2, 4),
        (LOSS, [3.0, 2.0, 2.5, 1.5, 1.6, 1.7], 4, 6),
        (LOSS, [3.0, 2.0, 1.0], 3, None),
        (Metric("f1"), [float("nan"), 0.2, 0.1, float("nan")], 2, 4),
    ],
)
def test_it_waits_for_the_metrics_own_direction(
    metric: Metric, values: list[float], best: int, ends_at: int | None
) -> None:
    record, ended = BestEvaluation(metric, patience=2), None
    for step, value in enumerate(values, start=1):
        record.take(step, {metric.name: value})
        if record.is_over:
            ended = step
            break
    assert (record.step, ended) == (best, ends_at)


def config(reviews: Path, base: str, **fields: object) -> TrainingConfig:
    """Twenty steps that are judged one by one, at a rate at which the loss soon rises."""
    values = {
        "epochs": 4.0,
        "optimizer": OptimizerSpec(lr=0.02),
        "eval": EvalSpec(every=Cadence(1, "step")),
        "checkpoint": CheckpointSpec(every=Cadence(3, "step"), keep=1),
        "early_stopping": EarlyStoppingSpec(metric="loss", patience=3),
    }
    return training_config(reviews, base, **{**values, **fields})


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that ended early."""

    config: TrainingConfig
    folder: Path
    events: list[Event]
    last: CheckpointRef

    @property
    def kept(self) -> BestKept:
        """What it said of its best evaluation."""
        return next(event for event in self.events if isinstance(event, BestKept))


@pytest.fixture(scope="module")
def run(reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that ends early."""
    folder, events, spec = (
        tmp_path_factory.mktemp("run"),
        list[Event](),
        config(reviews, tiny_model),
    )
    return Run(spec, folder, events, train(spec, events.append, folder))


def test_training_ends_early_with_the_best_weights(run: Run) -> None:
    judged = [event for event in run.events if isinstance(event, Evaluated)]
    losses = {event.step: event.metrics["loss"] for event in judged[:-1]}
    kept, last = run.kept, run.last
    assert kept.is_early
    assert kept.step == max(losses) == kept.best_step + 3 < 20
    assert min(losses, key=losses.__getitem__) == kept.best_step == judged[-1].step
    assert judged[-1].metrics["loss"] == pytest.approx(losses[kept.best_step], abs=1e-6)
    assert last.step == kept.step
    assert last.metrics == judged[-1].metrics
    best = run.folder / f"step-{kept.best_step:08d}"
    assert (best / WEIGHTS).read_bytes() == (Path(last.path) / WEIGHTS).read_bytes()


def test_a_run_that_ended_early_does_not_go_on(run: Run) -> None:
    again: list[Event] = []
    assert train(run.config, again.append, run.folder).metrics == run.last.metrics
    assert not [event for event in again if isinstance(event, Stepped)]
    assert [event for event in again if isinstance(event, BestKept)] == [run.kept]


def test_the_best_weights_are_kept_where_training_runs_to_its_end(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Of equal evaluations, the first is the best."""
    patient = EarlyStoppingSpec(patience=99)
    events: list[Event] = []
    last = train(config(reviews, tiny_model, early_stopping=patient), events.append, tmp_path)
    kept = next(event for event in events if isinstance(event, BestKept))
    judged = [event for event in events if isinstance(event, Evaluated)][:-1]
    best = max(judged, key=lambda event: event.metrics["accuracy"])
    assert (kept.step, kept.is_early, kept.metric) == (20, False, "accuracy")
    assert kept.best_step == best.step < 20
    assert last.metrics == pytest.approx(best.metrics, abs=1e-6)


def test_a_resume_ends_at_the_same_step_with_the_same_weights(run: Run, tmp_path: Path) -> None:
    best = run.kept.best_step

    class Killed(BaseException):
        """Stands for a lost process."""

    def stop_after_the_best(event: Event) -> None:
        if isinstance(event, Saved) and event.step > best:
            raise Killed

    spec = CheckpointSpec(every=Cadence(1, "step"), keep=1)
    every = dataclasses.replace(run.config, checkpoint=spec)
    with pytest.raises(Killed):
        train(every, stop_after_the_best, tmp_path)
    assert eventually(lambda: len(list(tmp_path.glob("step-*"))) == 2, within_s=10)
    assert (tmp_path / f"step-{best:08d}").exists()
    events: list[Event] = []
    resumed = train(every, events.append, tmp_path)
    assert next(event for event in events if isinstance(event, Started)).first_step > best
    assert (resumed.step, resumed.metrics) == (run.last.step, run.last.metrics)
    ours, other = (Path(found.path) / WEIGHTS for found in (resumed, run.last))
    assert ours.read_bytes() == other.read_bytes()


def test_a_trial_ends_with_the_metrics_of_its_best_evaluation(run: Run) -> None:
    """A trial saves nothing."""
    events: list[Event] = []
    last = train(run.config, events.append)
    judged = [event.metrics["loss"] for event in events if isinstance(event, Evaluated)]
    assert judged[-1] == min(judged) == last.metrics["loss"]
    assert len(judged) < 20


def test_the_last_weights_are_kept_where_the_best_had_no_room(run: Run, tmp_path: Path) -> None:
    size = files.size_of(Path(run.last.path))
    tight = CheckpointSpec(every=Cadence(1, "step"), keep=1, max_size=int(1.5 * size))  # type: ignore[arg-type]
    events: list[Event] = []
    config = dataclasses.replace(run.config, checkpoint=tight)
    last = train(config, events.append, tmp_path)
    assert any("best evaluation" in getattr(event, "message", "") for event in events)
    assert not [event for event in events if isinstance(event, BestKept)]
    assert last.metrics["loss"] > run.last.metrics["loss"]
