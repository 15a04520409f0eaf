"""Curves in TensorBoard files and in MLflow."""

from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.training.events import Evaluated, Event, Stepped
from orchestrator.interruption import Terminated
from orchestrator.records import tracking
from tests.builders import job

EVENTS: list[Event] = [
    Stepped(1, 0.7, 32, 300, 320, 0.5, 0.5),
    Stepped(2, 0.6, 32, 300, 320, 0.5, 1.0),
    Evaluated(2, {"accuracy": 0.9}),
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def follow(folder: Path, **fields: object) -> list[str]:
    """Track the events; returns what was said to be lost."""
    lost: list[str] = []
    with tracking.track(job(**fields), "run-1", folder / "tensorboard", lost.append) as tracks:
        for event in EVENTS:
            tracks.take(event)
    return lost


def test_tensorboard_files_hold_losses_and_metrics(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event as Record
    from tensorboardX.record_writer import RecordWriter  # noqa: F401 - the format's other half

    follow(tmp_path)
    (path,) = (tmp_path / "tensorboard").iterdir()
    content, found = path.read_bytes(), {}
    while content:
        size = int.from_bytes(content[:8], "little")
        record = Record.FromString(content[12 : 12 + size])
        for value in record.summary.value:
            found[value.tag, record.step] = value.simple_value
        content = content[12 + size + 4 :]
    assert found["train/loss", 2] == pytest.approx(0.6)
    assert found["train/samples_per_s", 1] == pytest.approx(64)
    assert found["eval/accuracy", 2] == pytest.approx(0.9)


def test_mlflow_holds_losses_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    assert follow(tmp_path, tracking__mlflow__uri=uri) == []
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("reviews")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train/loss"] == pytest.approx(0.6)
    assert run.data.metrics["eval/accuracy"] == pytest.approx(0.9)
    assert run.data.params["epochs"] == "3.0"


def after(first: BaseException, error: Exception) -> Exception:
    """An error as it is raised where another one went through C code."""
    error.__cause__ = first
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RunError("gone"), "FAILED"),
        (Terminated(), "KILLED"),
        (after(Terminated(), SystemError("error return without exception set")), "KILLED"),
    ],
)
def test_mlflow_knows_how_a_run_ended(
    error: BaseException, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    spec = job(tracking__mlflow__uri=uri)
    with (
        pytest.raises(type(error)),
        tracking.track(spec, "run-1", tmp_path / "tensorboard", lambda _: None),
    ):
        raise error
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("reviews").experiment_id])
    assert run.info.status == status


def test_a_tracking_server_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RunError, match=r"tracking\.mlflow\.uri http.* cannot be used"):
        follow(tmp_path, tracking__mlflow__uri="http://127.0.0.1:9")
