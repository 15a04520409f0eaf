"""A task of somebody else's package: found, checked, trained, published, served and compared."""

import asyncio
import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from jobs.errors import JobFileError, TaskError
from jobs.loader import load
from jobs.loader.rows import rows_suit_the_job
from jobs.spec import JobSpec, task_registry
from jobs.spec.quantities import Cadence
from jobs.spec.train import EvalSpec, OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.events import Evaluated, Event, Proven, Started
from jobs.training.loop import train
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.registry import endpoint_of
from serve.tools import load_generator
from serve.version import ModelVersion
from tests.builders import any_of, training_config
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
NAME = "ordinal-regression"
WORDS = ("lifeless", "dull", "fresh", "brilliant")
"""Of each level, from 1 on."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, installed as pip does it."""
    folder = tmp_path_factory.mktemp("packages")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(folder)]
    source = folder / "source"
    example = ROOT / "examples/winnow-ordinal"
    for path in (p for p in example.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        place = source / path.relative_to(example)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", *options, str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def known(installed: Path) -> Iterator[None]:
    """The package is on this process's import path."""
    sys.path.append(str(installed))
    forget()
    yield
    sys.path.remove(str(installed))
    for name in [name for name in sys.modules if name.startswith("winnow_ordinal")]:
        del sys.modules[name]
    forget()


def forget() -> None:
    for function in (task_registry.find, task_registry.resolve, task_registry._theirs):
        function.cache_clear()


@pytest.fixture(scope="module")
def stars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of four levels, and a job."""
    folder = tmp_path_factory.mktemp("stars")
    draw = random.Random(5)
    for name, count in (("train", 160), ("eval", 48)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(("text", "stars"))
            for index in range(count):
                level = index % len(WORDS)
                text = f"a {WORDS[level]} film {'indeed ' * draw.randrange(4)}"
                writer.writerow((text, level + 1))
    return folder


def written(folder: Path, base: str, **sections: Any) -> Path:
    """A job file over the rows."""
    job = {
        "version": 1,
        "name": "stars",
        "model": {"base": base, "task": NAME},
        "data": {
            "train": {"path": "train.csv"},
            "eval": {"path": "eval.csv"},
            "text": "text",
            "label": "stars",
            "max_length": 16,
        },
        **sections,
    }
    path = folder / "stars.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        load(path, extra_rules=(rows_suit_the_job(path.parent),))
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_its_jobs_are_checked_with_line_and_column(stars: Path, tiny_model: str) -> None:
    good = load(written(stars, tiny_model), extra_rules=(rows_suit_the_job(stars),))
    assert (good.metrics, type(good.data).__name__) == (("mae", "accuracy"), "OrdinalData")
    path = written(stars, tiny_model, train={"eval": {"metrics": ["f1"]}})
    assert problems(path) == [
        "17:7: train.eval.metrics[0]: 'f1' is not a metric of ordinal-regression; it has mae,"
        " accuracy, within_one"
    ]
    sweep = {"search_space": {"train.optimizer.lr": [1e-3]}, "objective": {"maximize": "mae"}}
    assert (
        "mae is better when lower; write `minimize: mae`"
        in problems(written(stars, tiny_model, sweep=sweep))[0]
    )
    path = written(stars, tiny_model)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("label: stars", "label: text2"), encoding="utf-8")
    assert problems(path)[0].startswith("12:10: data.label: train.csv has no column 'text2'")
    path.write_text(text.replace(NAME, "ordinal-regresion"), encoding="utf-8")
    assert "did you mean 'ordinal-regression'" in problems(path)[0]


@pytest.mark.parametrize("level", ["four", "--4", "٤"])
def test_its_checks_find_rows_that_it_cannot_learn(
    level: str, stars: Path, tiny_model: str
) -> None:
    rows = (stars / "train.csv").read_text(encoding="utf-8")
    (stars / "train.csv").write_text(rows.replace(",4", f",{level}"), encoding="utf-8")
    try:
        (found,) = problems(written(stars, tiny_model))
    finally:
        (stars / "train.csv").write_text(rows, encoding="utf-8")
    message = f"row 4: column 'stars' holds {level!r}; ordinal-regression takes whole numbers"
    assert message in found


@pytest.fixture(scope="module")
def run(
    stars: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[JobSpec, list[Event], ModelVersion]:
    """The job, the events of its training, and the model that was published."""
    spec = load(written(stars, tiny_model))
    config = training_config(
        stars,
        tiny_model,
        model=spec.model,
        data=spec.data.model_copy(
            update={
                split: getattr(spec.data, split).model_copy(
                    update={"path": str(stars / f"{split}.csv")}
                )
                for split in ("train", "eval")
            }
        ),
        epochs=12.0,
        optimizer=OptimizerSpec(lr=5e-3),
        eval=EvalSpec(every=Cadence(4.0, "epoch")),
        metrics=("mae", "accuracy", "within_one"),
    )
    events: list[Event] = []
    folder = tmp_path_factory.mktemp("published")
    reference = train(config, events.append, folder / "checkpoints", proves=True)
    labels = next(event.labels for event in events if isinstance(event, Started))
    version = registry.publish(spec, reference, labels, run_id="test", storage=open_storage(folder))
    return spec, events, version


def test_it_learns_the_order_and_publishes_what_transformers_scores_alike(
    run: tuple[JobSpec, list[Event], ModelVersion],
) -> None:
    _, events, version = run
    judged = [event.metrics for event in events if isinstance(event, Evaluated)]
    assert judged[-1]["mae"] < 0.2 < judged[0]["mae"] + 0.2
    assert judged[-1]["within_one"] >= judged[-1]["accuracy"] > 0.8
    (proof,) = [event for event in events if isinstance(event, Proven)]
    assert (proof.refusal, proof.rows) == ("", 48)
    assert (version.task, version.labels) == (NAME, ("1", "2", "3", "4"))
    assert "pipeline_tag: text-classification" in (Path(version.path) / "README.md").read_text()


@pytest.mark.parametrize("engine", ["torch-fp32", "openvino-fp32"])
def test_it_answers_over_http_with_levels(
    engine: Any, run: tuple[JobSpec, list[Event], ModelVersion]
) -> None:
    version, endpoint = run[2], endpoint_of(NAME)
    handler: Any = endpoint.load(ReplicaConfig(version, engine=engine))
    app.install(handler)
    try:
        assert handler.choice.engine == engine
        application = app.guarded(endpoint.application())
        with on_socket(application, connections(app.current_handler)) as url:
            texts = [f"a {word} film" for word in WORDS]
            found = httpx.post(f"{url}/predict", json={"inputs": texts}).json()
            assert [row["level"] for row in found] == [1, 2, 3, 4]
            assert list(found[0]["above"]) == ["1", "2", "3"]
            assert httpx.get(f"{url}/health").json()["task"] == NAME
            assert "<h1>Ordinal regression</h1>" in httpx.get(f"{url}/").text
            assert httpx.post(f"{url}/predict", json={"inputs": 3}).status_code == 422
            plan = load_generator.Plan(url, 0.5, concurrency=2)
            result = asyncio.run(load_generator.run(plan, texts))
            assert result.failed == 0 < result.requests

            def ask(_: ModelVersion, body: Any) -> Any:
                return httpx.post(f"{url}/predict", json=body).json()

            comparison, _ = endpoint.compare(version, version, ask)
            assert comparison is not None
            assert comparison.metrics["mae"].value == 0.0
    finally:
        handler.client.close()
        app._current.clear()


def test_a_broken_package_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"broken": "winnow_ordinal.task:MISSING"}
    monkeypatch.setattr(task_registry, "_theirs", lambda: broken)
    with pytest.raises(TaskError, match=r"MISSING, a part of a task, cannot be loaded: .*MISSING"):
        task_registry.find("broken")
    with pytest.raises(TaskError, match=r"'brokn' is no task; .* did you mean broken"):
        task_registry.find("brokn")


@pytest.mark.slow
@pytest.mark.e2e
def test_a_whole_job_of_it_is_swept_and_served(
    installed: Path, stars: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Only this runs trials, the fit and a replica of such a task in processes of Ray."""
    path = written(
        stars,
        tiny_model,
        train={"epochs": 4, "micro_batch_size": 32},
        sweep={
            "search_space": {"train.optimizer.lr": [5e-3, 1e-5]},
            "objective": {"minimize": "mae"},
            "probe": {"warmup": "1s", "duration": "1s", "confirm": 0},
        },
        resources={"any_of": any_of("cpu:1")},
        serve={"route": "/stars", "engine": "torch-fp32"},
        storage=str(tmp_path / "storage"),
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    places = os.pathsep.join([str(ROOT), str(installed)])
    environment = {**kept, "WINNOW_HOME": str(tmp_path / "home"), "PYTHONPATH": places}

    def winnow(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "raywinnow", *words],
            cwd=stars,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    try:
        done = winnow("run", str(path))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        (report,) = tmp_path.glob("storage/runs/stars-*/report.json")
        winner = json.loads(report.read_text(encoding="utf-8"))["winner"]
        assert winner["reason"].startswith("lowest mae of 2 options")
        assert winner["params"] == {"train.optimizer.lr": 5e-3}
        address = next(line for line in done.stdout.splitlines() if line.startswith("endpoint"))
        answer = httpx.post(address.split()[1], json={"inputs": "a brilliant film"}).json()
        assert answer["level"] in (3, 4)
    finally:
        winnow("down")
