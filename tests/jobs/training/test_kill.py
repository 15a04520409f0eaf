"""A run that is killed ends bit-identical to a whole one, whenever it is killed."""

import functools
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, EvalSpec
from jobs.storage import files, manifest
from jobs.training import checkpoint
from jobs.training.config import TrainingConfig
from tests.builders import training_config
from tests.jobs.training import workers

pytestmark = pytest.mark.workers

KILLS = 20
INTERVAL = 2
"""Steps between checkpoints."""


def hold_writes(first: int) -> None:
    """Lets a worker end no write of a checkpoint from a step on, so that no run outruns a kill."""
    write = manifest.write

    def hold(folder: Path, details: dict[str, Any]) -> dict[str, str]:
        if details["step"] >= first:
            threading.Event().wait()
        return write(folder, details)

    manifest.write = hold


def config(reviews: Path, base: str, world: int, **fields: object) -> TrainingConfig:
    """Ten steps of a small model with dropout, checkpointed every second step."""
    values = {
        "model": ModelSpec(base=base, dropout=0.1),
        "epochs": 2.0,
        "global_batch_size": 36,
        "micro_batch_size": 36 // world,
        "eval": EvalSpec(every=Cadence(3, "step")),
        "checkpoint": CheckpointSpec(every=Cadence(INTERVAL, "step"), keep=2),
    }
    return training_config(reviews, base, **{**values, **fields})


def weights(folder: Path) -> str:
    """Hash of the newest checkpoint's weights."""
    found = checkpoint.latest(checkpoint.CheckpointStore(folder))
    assert found is not None
    return manifest.sha256(Path(found.path) / manifest.MODEL_DIR / "model.safetensors")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_kills_before_during_and_after_a_checkpoint_change_nothing(
    world: int, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Earns its time: a SIGKILL inside a write; stock DDP fails this from 3 ranks on."""
    chosen, cut = config(reviews, tiny_model, world), tmp_path / "cut"
    whole = workers.run(chosen, world, tmp_path, tmp_path / "whole")
    assert len(workers.losses(whole)) == 10

    def has_stepped(log: Path) -> bool:
        return any(event["event"] == "Stepped" for event in workers.read(log))

    def is_writing(_: Path) -> bool:
        return any(cut.glob(f"{files.PARTIAL}step-00000004*"))

    def has_kept_more(log: Path) -> bool:
        return has_stepped(log) and (
            (cut / "step-00000006").exists() or (cut / "step-00000008").exists()
        )

    resumed_from, torn = [], 0
    for moment, held in ((has_stepped, 2), (is_writing, 4), (has_kept_more, 10)):
        log = tmp_path / f"cut-{len(resumed_from)}.jsonl"
        prepare = functools.partial(hold_writes, held)
        group = workers.start(chosen, world, cut, log, prepare=prepare)
        assert workers.comes(lambda moment=moment, log=log: moment(log))
        workers.kill(group, 0 if moment is is_writing else world - 1)
        torn += is_writing(log)
        found = checkpoint.latest(checkpoint.CheckpointStore(cut))
        resumed_from.append(found.step if found else 0)
    assert torn, "no kill fell into a write"
    assert resumed_from == sorted(resumed_from)
    assert resumed_from[-1] >= 6
    workers.run(chosen, world, tmp_path, cut)
    assert weights(cut) == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_kills_at_random_moments_change_nothing(
    world: int, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Catches moments that nobody thought of: 20 SIGKILLs for each number of workers."""
    chosen = config(reviews, tiny_model, world)
    whole = workers.run(chosen, world, tmp_path, tmp_path / "whole")
    span_s = next(e["elapsed_s"] for e in whole[::-1] if e["event"] == "Evaluated") + 0.1
    draw = random.Random(world)
    cut, kills, resumed_from = tmp_path / "cut", 0, []
    while kills < KILLS:
        log = tmp_path / f"cut-{kills}.jsonl"
        group = workers.start(chosen, world, cut, log)
        workers.wait_for(log, "Started")
        moment = time.monotonic() + draw.uniform(0, span_s)
        assert workers.comes(lambda moment=moment: time.monotonic() >= moment)
        done_before = max(
            (e["step"] for e in workers.read(log) if e["event"] == "Stepped"), default=0
        )
        workers.kill(group, draw.randrange(world))
        kills += 1
        found = checkpoint.latest(checkpoint.CheckpointStore(cut))
        kept = found.step if found else 0
        resumed_from.append(kept)
        # one interval, and the one whose write was under way
        assert done_before - kept <= 2 * INTERVAL
        if kept == 10:  # finished before the kill: start over, for kills that mean something
            assert weights(cut) == weights(tmp_path / "whole")
            cut = tmp_path / f"cut-{kills}"
    workers.run(chosen, world, tmp_path, cut)
    assert weights(cut) == weights(tmp_path / "whole")
    assert len(set(resumed_from)) > 2
    assert len(workers.losses(whole)) == 10


def test_resuming_on_fewer_workers_goes_on_with_the_same_curve(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """From 2 workers x 16 to 1 x 32 in the middle, up to fp32 rounding."""
    fields = {"model": ModelSpec(base=tiny_model, dropout=0.0), "global_batch_size": 32}
    two = config(reviews, tiny_model, 2, **{**fields, "micro_batch_size": 16})
    one = config(reviews, tiny_model, 1, **{**fields, "micro_batch_size": 32})
    whole = workers.losses(workers.run(two, 2, tmp_path))
    log = tmp_path / "half.jsonl"
    prepare = functools.partial(hold_writes, 6)
    group = workers.start(two, 2, tmp_path / "cut", log, prepare=prepare)
    shelf = checkpoint.CheckpointStore(tmp_path / "cut")
    assert workers.comes(lambda: checkpoint.latest(shelf) is not None)
    workers.kill(group, 0)
    events = workers.run(one, 1, tmp_path, tmp_path / "cut")
    first = next(event["first_step"] for event in events if event["event"] == "Started")
    assert 0 < first < len(whole)
    assert workers.losses(events) == pytest.approx(whole[first:], abs=1e-5)
