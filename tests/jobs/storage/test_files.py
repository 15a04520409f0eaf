"""New files are written together or not at all, and replace nothing."""

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
