"""A run in TensorBoard, MLflow and W&B: parameters, curves, trials, files, and how it ended."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError, RunError
from jobs.spec import JobSpec
from jobs.storage.storage import open_storage
from jobs.training.events import Evaluated, Event, Stepped
from orchestrator import preflight
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner
from orchestrator.interruption import Terminated
from orchestrator.records import runs
from orchestrator.records.runs import Run
from orchestrator.tracking import Tracking, tracked
from tests.builders import MINILM, any_of, eventually, inventory, job, plan_of, sweep

EVENTS: list[Event] = [
    Stepped(1, 0.7, 32, 300, 320, 0.5, 0.5, lr=1e-4, gradient_norm=2.0),
    Stepped(2, 0.6, 32, 300, 320, 0.5, 1.0, lr=2e-4, gradient_norm=float("inf")),
    Evaluated(2, {"accuracy": 0.9}),
]
TRIALS = [
    TrialResult(
        "a",
        "cpu",
        {"train.optimizer.lr": 3e-4},
        {"accuracy": 0.8, "loss": 0.4},
        ((5, 0.7), (9, 0.8)),
    ),
    TrialResult("b", "cpu", {"train.optimizer.lr": 9.0}, {}, failure="the loss is not finite"),
]
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracking folder of MLflow."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def searching(**tracking: Any) -> JobSpec:
    """A job that searches a learning rate, with trackers."""
    return job(
        resources={"any_of": any_of("cpu:1")},
        sweep=sweep({"train.optimizer.lr": [3e-4, 9.0]}, trials=2),
        tracking=tracking,
    )


def winner_of(spec: JobSpec, lr: float = 3e-4) -> Winner:
    """The first candidate of a plan, with a learning rate that is not the file's."""
    candidate = plan_of(spec, inventory(cpu=4)).candidates[0]
    return Winner(candidate, {"train.optimizer.lr": lr}, None, "")


def begun(folder: Path, spec: JobSpec) -> Run:
    """A run in a storage of its own."""
    return runs.create(open_storage(folder / "storage"), spec, datetime(2026, 1, 2, tzinfo=UTC))


def pass_through(tracking: Tracking, spec: JobSpec, folder: Path) -> None:
    """What a whole run tells its trackers."""
    for trial in TRIALS:
        tracking.log_trial(spec, trial)
    tracking.log_winner(spec, winner_of(spec))
    with tracking.with_tensorboard(folder / "tensorboard"):
        for event in EVENTS:
            tracking.take(event)
    (folder / "version").mkdir()
    (folder / "version" / "model.safetensors").write_bytes(b"weights")
    (folder / "report.html").write_text("<p>report</p>")
    tracking.log_files(spec, "report", [folder / "report.html"])
    tracking.log_files(spec, "model", [folder / "version"])


def follow(folder: Path, spec: JobSpec, run: Run | None = None) -> list[str]:
    """Track a whole run; returns what was logged of trackers that failed."""
    lost: list[str] = []
    run = run or begun(folder, spec)
    with tracked(run, spec, lost.append, is_trained=False) as tracking:
        pass_through(tracking, spec, folder)
    return lost


def in_mlflow(uri: str, name: str = "reviews") -> tuple[Any, list[Any]]:
    """The run of an experiment, and its child runs."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(name)
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in found if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {parent.info.run_id}
    return parent, sorted(children, key=lambda run: str(run.info.run_name))


def test_tensorboard_files_hold_losses_rates_and_metrics(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event as Record
    from tensorboardX.record_writer import RecordWriter  # noqa: F401 - the format's other half

    assert follow(tmp_path, searching()) == []
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
    assert found["train/lr", 2] == pytest.approx(2e-4)
    assert found["eval/accuracy", 2] == pytest.approx(0.9)


def test_mlflow_holds_the_winner_its_curves_the_trials_and_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earns its seconds: a database of MLflow, which the folders of other tests pass over."""
    import mlflow

    monkeypatch.chdir(tmp_path)  # where MLflow keeps the files of a database
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    spec = searching(mlflow={"uri": uri, "experiment": "lab"}, tags={"team": "search"})
    assert follow(tmp_path, spec) == []
    run, trials = in_mlflow(uri, "lab")
    assert run.info.status == "FINISHED"
    assert run.data.params["train.optimizer.lr"] == "0.0003"
    assert run.data.params["train.optimizer.weight_decay"] == "0.01"
    assert run.data.params["model.base"] == "bert-base-uncased"
    assert run.data.params["placement.sku"] == "cpu"
    assert run.data.tags["team"] == "search"
    assert run.data.tags["winnow.run"] == run.info.run_name
    assert run.data.metrics["train/loss"] == pytest.approx(0.6)
    assert run.data.metrics["train/lr"] == pytest.approx(2e-4)
    assert run.data.metrics["train/gradient_norm"] == pytest.approx(2.0)
    assert run.data.metrics["eval/accuracy"] == pytest.approx(0.9)
    assert [trial.info.status for trial in trials] == ["FINISHED", "FAILED"]
    assert [trial.data.params["train.optimizer.lr"] for trial in trials] == ["0.0003", "9.0"]
    assert trials[0].data.metrics == {"eval/accuracy": 0.8, "eval/loss": 0.4}
    assert trials[1].data.tags["winnow.failure"] == "the loss is not finite"
    client = mlflow.MlflowClient(tracking_uri=uri)
    history = client.get_metric_history(trials[0].info.run_id, "eval/accuracy")
    assert [(point.step, point.value) for point in history] == [(5, 0.7), (9, 0.8)]
    folder = client.download_artifacts(run.info.run_id, "model", str(tmp_path))
    assert (Path(folder) / "model.safetensors").read_bytes() == b"weights"
    assert [f.path for f in client.list_artifacts(run.info.run_id, "report")] == [
        "report/report.html"
    ]


def test_files_stay_here_if_the_job_says_so(tmp_path: Path, uri: str) -> None:
    import mlflow

    follow(tmp_path, searching(mlflow={"uri": uri}, artifacts=False))
    run, _ = in_mlflow(uri)
    assert mlflow.MlflowClient(tracking_uri=uri).list_artifacts(run.info.run_id) == []


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
    error: BaseException, status: str, tmp_path: Path, uri: str
) -> None:
    spec = searching(mlflow={"uri": uri})
    with (
        pytest.raises(type(error)),
        tracked(begun(tmp_path, spec), spec, lambda _: None, is_trained=False),
    ):
        raise error
    run, _ = in_mlflow(uri)
    assert run.info.status == status


def test_a_resumed_run_continues_its_run_in_mlflow(tmp_path: Path, uri: str) -> None:
    spec = searching(mlflow={"uri": uri})
    run = begun(tmp_path, spec)
    with tracked(run, spec, lambda _: None, is_trained=False) as tracking:
        tracking.log_winner(spec, winner_of(spec, lr=1e-5))
    assert follow(tmp_path, spec, run) == []
    found, _ = in_mlflow(uri)
    assert found.info.status == "FINISHED"
    assert found.data.params["train.optimizer.lr"] == "1e-05"  # MLflow changes no parameter
    assert found.data.tags["winnow.changed.train.optimizer.lr"] == "0.0003"


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path: Path, uri: str) -> None:
    spec, lost = searching(mlflow={"uri": uri}), list[str]()
    with tracked(begun(tmp_path, spec), spec, lost.append, is_trained=False) as tracking:
        (tmp_path / "mlruns").rename(tmp_path / "gone")
        (tmp_path / "mlruns").write_text("no folder any more")
        pass_through(tracking, spec, tmp_path)
    (line,) = lost
    assert line.startswith("MLflow accepts no more of this run, which continues: ")
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_server_that_is_not_there_is_an_error_before_the_sweep_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    spec, said = searching(mlflow={"uri": "http://127.0.0.1:9"}), list[str]()
    run = begun(tmp_path, spec)
    with (
        pytest.raises(RunError, match=r"tracking\.mlflow\.uri http.* cannot be used"),
        tracked(run, spec, said.append, is_trained=False),
    ):
        pass
    with tracked(run, spec, said.append, is_trained=True) as tracking:
        assert tracking.trackers == []
    assert said[0].startswith("the run continues without it: tracking.mlflow.uri")


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Kind and content of the pieces of a W&B file, which is a log of LevelDB after 7 bytes."""
    content, place, block = path.read_bytes(), 7, 32 * 1024
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        yield kind, content[place + 7 : place + 7 + size]
        place += 7 + size


def in_wandb(folder: Path, identity: str) -> dict[str, list[Any]]:
    """Records of an offline run of W&B by their kind."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob(f"wandb/offline-run-*-{identity}/*.wandb")
    found: dict[str, list[Any]] = {}
    held = b""
    for kind, piece in blocks(path):
        held = held + piece if kind in (3, 4) else piece  # 1 whole, 2 first, 3 middle, 4 last
        if kind in (1, 4):
            record = wandb_internal_pb2.Record.FromString(held)
            name = record.WhichOneof("record_type")
            found.setdefault(name, []).append(getattr(record, name))
    return found


def test_wandb_holds_the_winner_its_curves_the_trials_and_the_files(tmp_path: Path) -> None:
    """Earns its seconds: W&B itself, whose process writes what it would send."""
    spec = searching(wandb={"mode": "offline", "project": "lab"}, tags={"team": "search"})
    run = begun(tmp_path, spec)
    assert follow(tmp_path, spec, run) == []
    assert eventually(lambda: "exit" in in_wandb(run.folder, run.id))  # its process may be behind
    found = in_wandb(run.folder, run.id)
    (begun_as,) = found["run"]
    assert (begun_as.project, begun_as.run_group, begun_as.job_type) == ("lab", run.id, "run")
    assert "team:search" in begun_as.tags
    config = {each.key: each.value_json for record in found["config"] for each in record.update}
    assert config["train.optimizer.lr"] == "0.0003"
    values = [{i.nested_key[0] or i.key: i.value_json for i in h.item} for h in found["history"]]
    assert {"train/loss", "train/lr", "train/gradient_norm"} < values[0].keys()
    assert "train/gradient_norm" not in values[1]  # it is not finite
    assert [each.name for each in found["artifact"]] == ["reviews-report", "reviews-model"]
    assert found["exit"][0].exit_code == 0
    assert eventually(lambda: "exit" in in_wandb(run.folder, f"{run.id}-b"))
    trial = in_wandb(run.folder, f"{run.id}-b")
    assert trial["run"][0].run_group == run.id
    assert trial["exit"][0].exit_code == 1


def test_wandb_without_a_login_is_an_error_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    spec = job(model__base=MINILM, tracking={"wandb": {}})
    with pytest.raises(JobFileError, match=r"tracking\.wandb: has no login: set WANDB_API_KEY"):
        preflight.check(spec)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password something")
    (tmp_path / "netrc").chmod(0o600)
    preflight.check(spec)
