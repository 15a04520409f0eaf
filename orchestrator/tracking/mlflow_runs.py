"""Writes a run to MLflow: the run itself, and a child run for each trial."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.errors import RunError, first_line
from jobs.spec.job import MlflowSpec
from orchestrator.decisions.search import TrialResult
from orchestrator.records.runs import Run
from orchestrator.tracking.tracker import Outcome, Params

METRICS_OF_REQUEST = 500
"""Metrics of one request; the server accepts up to 1,000."""
PARAMS_OF_REQUEST = 100
"""Parameters of one request; the server accepts no more."""
FLUSH_S = 10.0
"""Longest time that metrics wait for others to be sent with."""
TRACKED = "tracked"
"""Event in a run's journal with the id of the MLflow run."""


class MlflowRun:
    """A run of an MLflow experiment; a resumed run of ours continues its run there."""

    name = "MLflow"

    def __init__(self, spec: MlflowSpec, run: Run, job: str, tags: Mapping[str, str]) -> None:
        try:
            import mlflow
            import mlflow.entities
        except ImportError:
            raise RunError(
                "tracking.mlflow needs the package mlflow; pip install 'raywinnow[mlflow]'"
            ) from None
        self._entities = mlflow.entities
        self._tags = dict(tags)
        self._held: list[Any] = []
        self._sent_s = time.monotonic()
        uri = spec.uri
        try:
            place = str(Path(uri).expanduser()) if uri.startswith("~") else uri
            self._client = mlflow.MlflowClient(tracking_uri=place)
            name = spec.experiment or job
            found = self._client.get_experiment_by_name(name)
            self._experiment = (
                found.experiment_id if found else self._client.create_experiment(name)
            )
            self._run = self._begin(run, uri)
        except mlflow.MlflowException as error:
            what = f"tracking.mlflow.uri {uri} cannot be used: {first_line(error)}"
            raise RunError(what) from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hold metrics and send many together, because each call is a request."""
        now = int(time.time() * 1000)
        self._held += [
            self._entities.Metric(name, value, now, step) for name, value in values.items()
        ]
        is_late = time.monotonic() - self._sent_s > FLUSH_S
        if is_late or len(self._held) >= METRICS_OF_REQUEST:
            self._send()

    def log_params(self, params: Params) -> None:
        """Record parameters, which MLflow never changes: those of a later winner become tags."""
        known = self._client.get_run(self._run).data.params
        new = {name: str(value) for name, value in params.items()}
        changed = {name for name, value in known.items() if new.get(name, value) != value}
        self._log_params(self._run, {k: v for k, v in new.items() if k not in known})
        for name in changed:
            self._client.set_tag(self._run, f"winnow.changed.{name}", new[name])

    def log_trial(self, trial: TrialResult, metric: str) -> None:
        """Record a trial as a child run."""
        end = int(time.time() * 1000)
        begin = end - int(trial.duration_s * 1000)
        tags = {
            **self._tags,
            "mlflow.parentRunId": self._run,
            "winnow.candidate": trial.candidate,
            "winnow.stopped_early": str(trial.stopped_early).lower(),
        }
        if trial.failure:
            tags["winnow.failure"] = trial.failure
        child = self._client.create_run(
            self._experiment, start_time=begin, tags=tags, run_name=f"trial {trial.id}"
        ).info.run_id
        self._log_params(child, {name: str(value) for name, value in trial.params.items()})
        last = max((step for step, _ in trial.history), default=0)
        points = [(f"eval/{metric}", value, step) for step, value in trial.history]
        others = {name: value for name, value in trial.metrics.items() if name != metric}
        points += [(f"eval/{name}", value, last) for name, value in others.items()]
        metrics = [self._entities.Metric(n, value, end, step) for n, value, step in points]
        self._client.log_batch(child, metrics=metrics)
        status = "FAILED" if trial.failure else "FINISHED"
        self._client.set_terminated(child, status, end_time=end)

    def log_files(self, folder: str, paths: Sequence[Path]) -> None:
        """Upload files; those of a folder that is there already are not sent again."""
        if self._client.list_artifacts(self._run, folder):
            return
        for path in paths:
            if path.is_dir():
                self._client.log_artifacts(self._run, str(path), folder)
            else:
                self._client.log_artifact(self._run, str(path), folder)

    def close(self, outcome: Outcome) -> None:
        """Send the rest and mark the run as ended."""
        self._send()
        self._client.set_terminated(self._run, outcome)

    def _begin(self, run: Run, uri: str) -> str:
        """Continue the run that the journal names if the server still has it; else a new one."""
        notes = [note for note in run.notes if note["event"] == TRACKED and note["uri"] == uri]
        known = notes[-1]["id"] if notes else ""
        active = self._entities.ViewType.ACTIVE_ONLY
        wanted = f"attributes.run_id = '{known}'"
        if known and self._client.search_runs([self._experiment], wanted, active):
            self._client.update_run(known, status="RUNNING")
            return known
        made = self._client.create_run(self._experiment, tags=self._tags, run_name=run.id)
        identity = str(made.info.run_id)
        run.note(TRACKED, uri=uri, id=identity)
        return identity

    def _log_params(self, run: str, values: Mapping[str, str]) -> None:
        for piece in _pieces(sorted(values.items()), PARAMS_OF_REQUEST):
            params = [self._entities.Param(name, value) for name, value in piece]
            self._client.log_batch(run, params=params)

    def _send(self) -> None:
        held, self._held = self._held, []
        self._sent_s = time.monotonic()
        for piece in _pieces(held, METRICS_OF_REQUEST):
            self._client.log_batch(self._run, metrics=piece)


def _pieces(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
