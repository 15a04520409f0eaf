"""Nothing that a user can write ends in a traceback: made-up jobs run, or end in a sentence."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from jobs.errors import DataError, PublishError, WinnowError
from jobs.spec import JobSpec
from jobs.storage.storage import open_storage
from jobs.training import eval_sample, plain_scores, publication
from jobs.training.data.longest_row import longest_row
from jobs.training.events import Event, Started
from jobs.training.loop import train
from jobs.training.model.counting import shape_of
from jobs.training.model.library import as_model_error
from orchestrator.decisions.plan import make_plan
from orchestrator.decisions.resolve import training_config
from orchestrator.loading import load_job
from orchestrator.records import inputs, registry
from tests import made_up
from tests.builders import inventory
from tests.commands import call as winnow

pytestmark = pytest.mark.filterwarnings("ignore")
LONGEST = 1500
"""Characters of a sentence, which may name a path of 1024."""
NOT_FOR_USERS = re.compile(r"Traceback|this is a bug|<class |object at 0x|NoneType")
AFTER_TOKENS = re.compile("chat template|within data.max_length|makes no token")
"""What is wrong with rows that only a tokenizer finds, which `validate` does not load."""
LARGEST_BATCH, LONGEST_ROW, EPOCHS = 64, 512, 0.5
"""What is trained here at most."""
few = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tiny models, spoilt ones and the nodes of a cluster."""
    folder = tmp_path_factory.mktemp("made-up")
    prepare(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads of such small products wait for others
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_HOME", str(folder / "home"))
        yield folder
    torch.set_num_threads(threads)


def prepare(folder: Path) -> None:
    made_up.save_models(folder)
    cpu = {"id": "a", "sku": "cpu", "devices": 2, "memory_gib": 8.0}
    nodes = {"nodes": [cpu, {"id": "b", "sku": "T4", "devices": 2}]}
    (folder / "nodes").mkdir()
    (folder / "nodes/nodes.json").write_text(json.dumps(nodes), encoding="utf-8")


@settings(few, max_examples=250)
@given(made_up.jobs())
def test_a_made_up_job_is_valid_or_refused_in_sentences(folder: Path, job: made_up.MadeUp) -> None:
    if is_valid(folder, job):
        commands_end_well(folder, "plan", "--inventory", "nodes/nodes.json")


@settings(few, max_examples=50)
@given(made_up.jobs(oddities_at_most=1))
def test_a_valid_made_up_job_is_published_or_ends_in_a_sentence(
    folder: Path, job: made_up.MadeUp
) -> None:
    if is_valid(folder, job):
        ends_well(folder)


@pytest.mark.slow
@settings(few, max_examples=1500)
@given(made_up.jobs(oddities_at_most=4))
def test_many_made_up_jobs_end_well(folder: Path, job: made_up.MadeUp) -> None:
    """Finds combinations of two or three odd values, of which the other tests draw few."""
    if is_valid(folder, job):
        commands_end_well(folder, "plan", "--inventory", "nodes/nodes.json")
        ends_well(folder)


def is_valid(folder: Path, job: made_up.MadeUp) -> bool:
    job.write(folder)
    return commands_end_well(folder, "validate")


def commands_end_well(folder: Path, command: str, *options: str) -> bool:
    """Whether a command succeeds; it says why not in sentences."""
    done = winnow(folder, command, made_up.JOB_FILE, *options)
    assert done.returncode in (0, 1, 2)
    lines = done.stderr.splitlines()
    assert bool(lines) == bool(done.returncode), done.stderr
    for line in lines:
        if not re.fullmatch(r"\d+ problems", line):
            assert line.startswith("error: "), done.stderr
            check_sentence(line)
    return not done.returncode


def ends_well(folder: Path) -> str:
    """What became of a valid job; a failure is told in a sentence, and is not one of its files."""
    failure = failure_of(load_job(folder / made_up.JOB_FILE, None), folder)
    if failure is None:
        return "published"
    check_sentence(str(failure))
    assert not isinstance(failure, DataError) or AFTER_TOKENS.search(str(failure)), failure
    return str(failure)


def check_sentence(text: str) -> None:
    assert "\n" not in text, text
    assert 10 < len(text) < LONGEST, text
    assert len(text.split()) > 3, text
    assert not text.endswith("."), text
    assert not NOT_FOR_USERS.search(text), text


def failure_of(spec: JobSpec, folder: Path) -> WinnowError | None:
    """Train a job for a few steps on a CPU, prove its model and publish it."""
    sources = (spec.data.train, spec.data.eval)
    is_here = all(source.is_local and source.is_file for source in sources)
    is_small = spec.train.global_batch_size <= LARGEST_BATCH
    if not is_here or not is_small or spec.data.max_length > LONGEST_ROW:
        return None
    try:
        inputs.inputs_of(spec)
        publish(spec, folder)
    except WinnowError as error:
        return error
    return None


def publish(spec: JobSpec, folder: Path) -> None:
    shape = shape_of(spec.model.base, spec.task)
    plan = make_plan(spec, inventory(cpu=2), shape, longest_row(spec))
    config = training_config(spec, plan.candidates[0].execution, {})
    config = dataclasses.replace(config, epochs=min(config.epochs, EPOCHS))
    events: list[Event] = []
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    reference = train(config, events.append, checkpoints)
    (labels,) = (event.labels for event in events if isinstance(event, Started))
    model = Path(reference.path) / "model"
    with as_model_error("plain transformers cannot load or run it"):
        found = plain_scores.scores_of(model, "cpu", spec.task.auto_class, spec.task.activation)
        plain, is_loss = publication.PlainScores(**found), spec.task.activation == "token-loss"
    bound = publication.BOUNDS[config.precision]
    _, refusal = publication.compare(eval_sample.read(model), plain, bound, is_loss=is_loss)
    if refusal:
        raise PublishError(f"the model is not published, because {refusal}")
    storage = open_storage(str(folder / "store"))
    registry.publish(spec, reference, labels, run_id="run", storage=storage)
