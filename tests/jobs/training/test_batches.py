"""Which rows each step sees."""

import tracemalloc

import numpy as np
import pytest

from jobs.training.data import batches
from jobs.training.data.batches import FILLER

LENGTHS = np.random.default_rng(0).integers(3, 60, size=1000)


def epoch(number: int = 0, *, seed: int = 5, batch: int = 32) -> batches.Indices:
    """The batches of an epoch over LENGTHS."""
    return batches.epoch_batches(LENGTHS, batch, seed, number)


@pytest.mark.parametrize(("world_size", "micro"), [(1, 32), (2, 16), (1, 8), (4, 4), (2, 8)])
def test_every_layout_sees_the_same_global_batches(world_size: int, micro: int) -> None:
    shares = [
        batches.own_share(epoch(), rank=rank, world_size=world_size, micro_batch_size=micro)
        for rank in range(world_size)
    ]
    assert {share.shape for share in shares} == {(32, 32 // world_size // micro, micro)}
    together = np.concatenate([share.reshape(32, -1) for share in shares], axis=1)
    assert np.array_equal(np.sort(together, axis=1), np.sort(epoch(), axis=1))


def test_an_epoch_sees_each_row_once_and_fills_one_batch_up() -> None:
    rows = epoch()
    assert sorted(rows[rows != FILLER].tolist()) == list(range(1000))
    assert sorted((rows == FILLER).sum(axis=1).tolist()) == [0] * 31 + [24]


def test_epochs_and_seeds_differ_in_order() -> None:
    assert not np.array_equal(epoch(0), epoch(1))
    assert not np.array_equal(epoch(0), epoch(0, seed=6))
    assert np.array_equal(epoch(1), epoch(1))


def test_rows_of_like_length_come_together() -> None:
    rows = batches.epoch_batches(LENGTHS, 8, 5, 0)
    spread = np.ptp(LENGTHS[rows], axis=1)
    assert spread.max() <= 10
    assert np.ptp(LENGTHS) > 50


def test_batches_of_all_lengths_alternate() -> None:
    longest = batches.batch_lengths(epoch(), LENGTHS)
    steps = np.diff(longest)
    assert (steps > 0).any()
    assert (steps < 0).any()


def test_widths_hold_every_batch_with_little_padding() -> None:
    longest = batches.batch_lengths(epoch(), LENGTHS)
    widths = batches.choose_widths(longest, 64)
    fitted = batches.fit_widths(longest, widths)
    assert len(widths) <= batches.MAX_WIDTHS
    assert widths[-1] == 64
    assert (fitted >= longest).all()
    assert fitted.sum() <= 1.15 * longest.sum()


def test_few_lengths_get_a_width_each() -> None:
    assert batches.choose_widths(np.array([7, 8, 30, 8]), 32) == (8, 32)


def test_the_choice_among_very_long_rows_takes_little_memory() -> None:
    """Each length of up to 131,072 tokens occurs, so that 32,768 multiples of 4 do."""
    longest = np.arange(1, 131_073)
    tracemalloc.start()
    widths = batches.choose_widths(longest, 131_072)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert widths[-1] == 131_072
    assert len(widths) == batches.MAX_WIDTHS
    # equal distances are best, and pad half of a distance
    padded = batches.fit_widths(longest, widths).mean() - longest.mean()
    assert padded < 1.02 * 131_072 / batches.MAX_WIDTHS / 2


def test_few_lengths_are_not_rounded_coarsely_because_one_is_long() -> None:
    assert batches.choose_widths(np.array([7, 8, 30, 8]), 131_072) == (8, 32, 131_072)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_as_many_widths_pads_less(seed: int) -> None:
    """Against trying every pair and triple of multiples."""
    import itertools

    longest = np.random.default_rng(seed).integers(1, 33, size=40)
    best = batches.fit_widths(longest, batches.choose_widths(longest, 32)).sum()
    multiples = range(4, 32, 4)
    for inner in itertools.combinations(multiples, 3):
        assert batches.fit_widths(longest, (*inner, 32)).sum() >= best


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"), [(100, 1, 4), (100, 0.5, 2), (96, 3, 9), (3, 0.1, 1)]
)
def test_steps_of_a_run_follow_rows_and_epochs(rows: int, epochs: float, steps: int) -> None:
    assert batches.total_steps(rows, 32, epochs) == steps
