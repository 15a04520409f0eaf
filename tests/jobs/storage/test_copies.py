"""Copies on this machine are bounded, and what is in use stays."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.errors import StorageError
from jobs.storage import copies, files

DAY_S = 86_400.0
SIZE = 1000
LOOKS = 500
"""Enough for several to meet a folder as it goes."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path))


def make(copy: Path, *, days: float) -> Path:
    """A copy of SIZE bytes that was last used so many days ago."""
    with copies.holding(copy):
        inside = copy if copy.suffix else copy / "deep" / "weights"
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(b"0" * SIZE)
    used = time.time() - days * DAY_S
    os.utime(copy, (used, used))
    return copy


def test_the_longest_unused_go_until_the_rest_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    version = make(copies.fetched() / "version", days=3)
    rows = make(copies.fetched() / "rows.csv", days=1)
    tokens = make(copies.tokenised() / "tokens.arrow", days=2)
    assert copies.make_room(3 * SIZE) == []
    monkeypatch.setenv(copies.LIMIT, str(3 * SIZE))
    new = make(copies.fetched() / "new", days=0)
    assert sorted(copies.every()) == sorted([rows, tokens, new])
    with copies.holding(tokens):
        pass  # used now, so the rows are the oldest
    assert copies.make_room(2 * SIZE) == [rows]
    assert not version.exists()


def test_what_is_held_or_was_used_lately_stays_above_the_limit() -> None:
    held = make(copies.fetched() / "held", days=9)
    make(copies.fetched() / "lately", days=copies.KEPT_S / DAY_S / 2)
    with copies.holding(held):
        assert copies.make_room(0) == []
    os.utime(held, (0, 0))
    assert copies.make_room(0) == [held]


def test_copies_are_counted_while_others_fetch() -> None:
    kept = make(copies.fetched() / "kept", days=0)
    partial = files.partial_of(copies.fetched() / "fetched")

    def count() -> None:
        for _ in range(LOOKS):
            assert copies.make_room(SIZE) == []
            assert kept in copies.every()

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count)
        while not counting.done():
            (partial / "deep").mkdir(parents=True)
            shutil.rmtree(partial)
        counting.result()


def test_a_limit_that_is_no_size_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(copies.LIMIT, "plenty")
    with (
        pytest.raises(StorageError, match="WINNOW_CACHE_LIMIT is 'plenty', which is no size"),
        copies.holding(copies.fetched() / "any"),
    ):
        raise AssertionError("reached")
