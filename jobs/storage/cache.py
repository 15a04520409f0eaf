"""The bounded cache of downloads and tokenised rows; least recently used copies go first."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
from pydantic import ByteSize, TypeAdapter, ValidationError

from jobs.errors import StorageError
from jobs.storage import files

LIMIT = "WINNOW_CACHE_LIMIT"
"""Environment variable with the largest size of all copies together, such as `200GiB`."""
DEFAULT_LIMIT = "100GiB"
KEPT_S = 3600.0
"""Seconds since its last use during which a copy is kept even above the limit.

Another process may still be reading it.
"""


def fetched() -> Path:
    """Returns the folder of downloads from buckets."""
    return files.cache_folder() / "s3"


def tokenised() -> Path:
    """Returns the folder of tokenised rows."""
    return files.cache_folder() / "tokens"


@contextlib.contextmanager
def holding(copy: Path) -> Iterator[None]:
    """Holds the lock of a copy while the caller reads or makes it.

    Afterwards the copy counts as just used, and others are deleted if the cache exceeds its limit.

    Raises:
        StorageError: if the environment variable for the limit does not hold a size.
    """
    limit = _limit()
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _lock(copy):
        yield
        if copy.exists():
            os.utime(copy)
    make_room(limit)


def every() -> list[Path]:
    """Returns all copies; each is a file or a folder."""
    found = [*fetched().glob("*"), *tokenised().glob("*")]
    return [path for path in found if path.suffix != ".lock"]


def make_room(limit: int, *, kept_s: float = KEPT_S) -> list[Path]:
    """Deletes the least recently used copies until the rest has at most `limit` bytes.

    Returns the deleted copies. Copies that are locked or were used within `kept_s` stay.
    """
    sizes = {copy: files.size_of(copy) for copy in every()}
    total, deleted = sum(sizes.values()), list[Path]()
    for copy in sorted(sizes, key=_last_used):
        if total <= limit:
            break
        if _delete(copy, kept_s):
            deleted.append(copy)
            total -= sizes[copy]
    return deleted


def _limit() -> int:
    text = os.environ.get(LIMIT) or DEFAULT_LIMIT
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise StorageError(
            f"{LIMIT} is {text!r}, which is not a size; write one such as 100GiB"
        ) from None


def _lock(copy: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(copy.with_suffix(".lock"))


def _last_used(copy: Path) -> float:
    """Returns when a copy was last used, in seconds since 1970; 0 if it was deleted meanwhile."""
    with contextlib.suppress(OSError):
        return copy.stat().st_mtime
    return 0.0


def _delete(copy: Path, kept_s: float) -> bool:
    """Deletes a copy unless another process holds its lock or it was used within `kept_s`."""
    with contextlib.suppress(filelock.Timeout), _lock(copy).acquire(timeout=0):
        if time.time() - _last_used(copy) >= kept_s:
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink(missing_ok=True)
            return True
    return False
