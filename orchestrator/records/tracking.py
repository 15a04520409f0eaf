"""Writes the metrics of a fit to TensorBoard and, if the job names it, to MLflow."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Protocol

from jobs.errors import RunError
from jobs.spec import JobSpec
from jobs.training.events import Evaluated, Event, Metered, Stepped
from orchestrator import interruption

MLFLOW_BATCH = 500
"""Metrics of one request; the server accepts up to 1,000."""


Outcome = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's terms."""


class Tracker(Protocol):
    """A destination of metrics."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record named values of an optimizer step."""

    def close(self, outcome: Outcome) -> None:
        """Flush all values and end the run."""


class Tracking:
    """Passes the values of events to every tracker."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers
        self._step = 0

    def take(self, event: Event) -> None:
        """Record the losses, rates, metrics or final speed of an event."""
        values: dict[str, float] = {}
        match event:
            case Stepped():
                self._step = event.step
                values = {"train/loss": event.loss}
                if event.seconds:
                    values["train/samples_per_s"] = event.samples / event.seconds
            case Evaluated():
                values = {f"eval/{name}": value for name, value in event.metrics.items()}
            case Metered():
                numbers = {k: v for k, v in asdict(event).items() if isinstance(v, int | float)}
                values = {f"speed/{name}": value for name, value in numbers.items()}
        if values:
            for tracker in self._trackers:
                tracker.log(self._step, values)


@contextlib.contextmanager
def track(
    spec: JobSpec, run: str, folder: Path, on_loss: Callable[[str], None]
) -> Iterator[Tracking]:
    """Track a run: TensorBoard files in `folder`, and MLflow as the job says.

    `spec` is the job as it is trained, with the winner's parameters. `on_loss` gets a sentence if
    the tracking server stops accepting metrics.

    Raises:
        RunError: if the tracking server accepts none at the start.
    """
    trackers: list[Tracker] = [TensorBoard(folder)]
    if spec.tracking and spec.tracking.mlflow:
        trackers.append(Mlflow(spec.tracking.mlflow.uri, spec, run, on_loss))
    outcome: Outcome = "KILLED"
    try:
        yield Tracking(trackers)
        outcome = "FINISHED"
    except Exception as error:
        outcome = "KILLED" if interruption.kind_of(error) else "FAILED"
        raise
    finally:
        for tracker in trackers:
            tracker.close(outcome)


class TensorBoard:
    """Writes event files for `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        import tensorboardX  # takes a third of a second, which other commands need not wait for

        self._writer = tensorboardX.SummaryWriter(str(folder))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, _: Outcome) -> None:
        """Flush the file."""
        self._writer.close()


class Mlflow:
    """Writes to a run of the MLflow experiment with the job's name."""

    def __init__(self, uri: str, spec: JobSpec, run: str, on_loss: Callable[[str], None]) -> None:
        self._on_loss = on_loss
        try:
            import mlflow
            import mlflow.entities
        except ImportError:
            raise RunError(
                "tracking.mlflow needs the package mlflow; pip install 'raywinnow[mlflow]'"
            ) from None
        self._metric = mlflow.entities.Metric
        self._failure = mlflow.MlflowException
        self._held: list[mlflow.entities.Metric] = []
        self._is_lost = False
        try:
            place = str(Path(uri).expanduser()) if uri.startswith("~") else uri
            self._client = mlflow.MlflowClient(tracking_uri=place)
            found = self._client.get_experiment_by_name(spec.name)
            experiment = found.experiment_id if found else self._client.create_experiment(spec.name)
            self._run = self._client.create_run(experiment, run_name=run).info.run_id
            for name, value in spec.train.model_dump(mode="json").items():
                self._client.log_param(self._run, name, value)
        except self._failure as error:
            raise RunError(f"tracking.mlflow.uri {uri} cannot be used: {error}") from None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Buffer metrics and send them in batches, because each call is a request."""
        now = int(time.time() * 1000)
        self._held += [self._metric(name, value, now, step) for name, value in values.items()]
        if len(self._held) >= MLFLOW_BATCH:
            self._send()

    def close(self, outcome: Outcome) -> None:
        """Send the rest and mark the run as ended."""
        self._send()
        self._try(lambda: self._client.set_terminated(self._run, outcome))

    def _send(self) -> None:
        held, self._held = self._held, []
        self._try(lambda: self._client.log_batch(self._run, metrics=held))

    def _try(self, call: Callable[[], object]) -> None:
        """Call MLflow; after the first failure, log it and send nothing more.

        A failure of the tracking server must not end the training run.
        """
        if self._is_lost:
            return
        try:
            call()
        except self._failure as error:
            self._is_lost = True
            self._on_loss(f"MLflow accepts no more metrics, training continues: {error}")
