"""New files are written together or not at all, and replace nothing."""

import errno
import os
from pathlib import Path

import pytest

from jobs.errors import StorageError
from jobs.storage import files


def test_new_files_are_written(tmp_path: Path) -> None:
    files.write_new({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("last", "message"), [("kept", "kept exists already"), ("none/b", "b cannot be written: No su")]
)
def test_none_is_written_if_one_cannot_be(tmp_path: Path, last: str, message: str) -> None:
    (tmp_path / "kept").write_bytes(b"mine")
    with pytest.raises(StorageError, match=message):
        files.write_new({tmp_path / "a": b"1", tmp_path / last: b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": b"mine"}


def test_a_file_is_replaced_only_by_a_block_that_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "new/a"
    with files.replacing(path) as partial:
        partial.write_bytes(b"1")
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt):
        fail(path, KeyboardInterrupt())
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(StorageError, match="a cannot be written: No space left on device") as full:
        fail(path, error)
    assert full.value.is_full
    with pytest.raises(StorageError, match="No such file"), files.replacing(path):
        pass  # nothing is written
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == {"a": b"1"}


def fail(path: Path, error: BaseException) -> None:
    """Raises an error after half of a file is written."""
    with files.replacing(path) as partial:
        partial.write_bytes(b"half")
        raise error
