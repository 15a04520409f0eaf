"""Which samples each worker sees."""

import itertools

import numpy as np
import pytest

from jobs.training.data import batches


def rows_of_step(step: int, *, world_size: int, micro: int, rows: int = 100) -> list[list[int]]:
    """Row numbers that each worker counts in one optimizer step of 32 samples."""
    indices = batches.global_batch(rows, 32, seed=5, step=step)
    return [
        [
            int(index)
            for batch in batches.micro_batches(
                indices,
                rank=rank,
                world_size=world_size,
                micro_batch_size=micro,
                global_batch_size=32,
            )
            for index, weight in zip(batch.indices, batch.weights, strict=True)
            if weight
        ]
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(("world_size", "micro"), [(1, 32), (2, 16), (1, 8), (4, 4), (2, 8)])
def test_every_layout_sees_the_same_global_batches(world_size: int, micro: int) -> None:
    for step in range(8):
        expected = sorted(batches.global_batch(100, 32, seed=5, step=step).tolist())
        found = rows_of_step(step, world_size=world_size, micro=micro)
        assert sorted(itertools.chain.from_iterable(found)) == expected


def test_an_epoch_sees_each_row_once() -> None:
    steps = batches.steps_per_epoch(100, 32)
    seen = np.concatenate([batches.global_batch(100, 32, seed=5, step=s) for s in range(steps)])
    assert sorted(seen.tolist()) == list(range(100))


def test_epochs_and_seeds_differ_in_order() -> None:
    first = batches.global_batch(100, 32, seed=5, step=0).tolist()
    assert batches.global_batch(100, 32, seed=5, step=4).tolist() != first
    assert batches.global_batch(100, 32, seed=6, step=0).tolist() != first


def test_workers_make_the_same_number_of_passes_when_rows_run_out() -> None:
    indices = np.arange(5)
    passes = [
        list(
            batches.micro_batches(
                indices, rank=rank, world_size=4, micro_batch_size=2, global_batch_size=32
            )
        )
        for rank in range(4)
    ]
    assert [len(own) for own in passes] == [1, 1, 1, 1]
    assert sum(float(batch.weights.sum()) for own in passes for batch in own) == 5


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"), [(100, 1, 4), (100, 0.5, 2), (96, 3, 9), (3, 0.1, 1)]
)
def test_steps_of_a_run_follow_rows_and_epochs(rows: int, epochs: float, steps: int) -> None:
    assert batches.total_steps(rows, 32, epochs) == steps
