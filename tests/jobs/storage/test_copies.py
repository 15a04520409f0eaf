"""Copies on this machine are bounded, and what is in use stays."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.errors import StorageError
from jobs.storage import cache, files

DAY_S = 86_400.0
SIZE = 1000
LOOKS = 500
"""Enough for several to meet a folder as it goes."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))


def make(copy: Path, *, days: float) -> Path:
    """A copy of SIZE bytes that was last used so many days ago."""
    with cache.holding(copy):
        inside = copy if copy.suffix else copy / "deep" / "weights"
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(b"0" * SIZE)
    used = time.time() - days * DAY_S
    os.utime(copy, (used, used))
    return copy


def test_the_longest_unused_go_until_the_rest_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    version = make(cache.fetched() / "version", days=3)
    rows = make(cache.fetched() / "rows.csv", days=1)
    tokens = make(cache.tokenised() / "tokens.arrow", days=2)
    assert cache.make_room(3 * SIZE) == []
    monkeypatch.setenv(cache.LIMIT, str(3 * SIZE))
    new = make(cache.fetched() / "new", days=0)
    assert sorted(cache.every()) == sorted([rows, tokens, new])
    with cache.holding(tokens):
        pass  # used now, so the rows are the oldest
    assert cache.make_room(2 * SIZE) == [rows]
    assert not version.exists()


def test_what_is_held_or_was_used_lately_stays_above_the_limit() -> None:
    held = make(cache.fetched() / "held", days=9)
    make(cache.fetched() / "lately", days=cache.KEPT_S / DAY_S / 2)
    with cache.holding(held):
        assert cache.make_room(0) == []
    os.utime(held, (0, 0))
    assert cache.make_room(0) == [held]


def test_copies_are_counted_while_others_fetch() -> None:
    kept = make(cache.fetched() / "kept", days=0)
    partial = files.partial_of(cache.fetched() / "fetched")

    def count() -> None:
        for _ in range(LOOKS):
            assert cache.make_room(SIZE) == []
            assert kept in cache.every()

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count)
        while not counting.done():
            (partial / "deep").mkdir(parents=True)
            shutil.rmtree(partial)
        counting.result()


def test_a_limit_that_is_no_size_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.LIMIT, "plenty")
    with (
        pytest.raises(StorageError, match="WINNOW_CACHE_LIMIT is 'plenty', which is not a size"),
        cache.holding(cache.fetched() / "any"),
    ):
        raise AssertionError("reached")
