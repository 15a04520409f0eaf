"""Running out of memory: told, and gone on from in fresh processes with a smaller micro batch."""

import csv
from pathlib import Path

import pytest

from jobs.training.config import TrainingConfig
from jobs.training.out_of_memory import is_out_of_memory
from orchestrator.decisions.resolve import with_smaller_micro_batch
from tests.builders import training_config
from tests.jobs.training import workers

SPARE_MIB = 400


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 250 words, which take far more memory than the model."""
    folder = tmp_path_factory.mktemp("long")
    for name, count in (("train", 256), ("eval", 8)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            rows = [("film " * 250, str(index % 2)) for index in range(count)]
            csv.writer(handle).writerows([("text", "label"), *rows])
    return folder


@pytest.mark.workers
def test_a_micro_batch_that_does_not_fit_is_halved_until_it_does(
    long_rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    """A real limit on the address space; the global batch, and so the loss, stays."""
    fields = {"global_batch_size": 256, "micro_batch_size": 256}
    data = training_config(long_rows, tiny_model).data.model_copy(update={"max_length": 256})
    config: TrainingConfig | None = training_config(long_rows, tiny_model, data=data, **fields)
    assert config is not None
    expected = workers.losses(workers.run(config, 1, tmp_path))
    tried = []
    while config is not None:
        tried.append(config.micro_batch_size)
        log = tmp_path / f"{config.micro_batch_size}.jsonl"
        codes = workers.finish(workers.start(config, 1, None, log, spare_mib=SPARE_MIB))
        if codes == [0]:
            break
        told = any(event["event"] == "OutOfMemory" for event in workers.read(log))
        assert told, log.with_suffix(".error").read_text(encoding="utf-8")
        config = with_smaller_micro_batch(config)
    assert tried[0] == 256
    assert 1 < tried[-1] < 256
    assert workers.losses(workers.read(log)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8257536 bytes.", True),
        ("unable to mmap 4049552 bytes from file <model>: Cannot allocate memory (12)", True),
        ("could not create a primitive", True),
        ("can't start new thread", False),
        ("The size of tensor a (2) must match the size of tensor b (3)", False),
    ],
)
def test_what_torch_says_when_memory_runs_out(message: str, *, expected: bool) -> None:
    """The first three as seen under limits from 20 to 700 MiB."""
    assert is_out_of_memory(RuntimeError(message)) == expected


@pytest.mark.parametrize(("micro", "smaller"), [(64, 32), (6, 3), (9, 3), (5, 1), (1, None)])
def test_a_smaller_micro_batch_divides_the_one_before(
    micro: int, smaller: int | None, tmp_path: Path
) -> None:
    config = training_config(tmp_path, "any", global_batch_size=2 * micro, micro_batch_size=micro)
    found = with_smaller_micro_batch(config)
    assert (found.micro_batch_size if found else None) == smaller
