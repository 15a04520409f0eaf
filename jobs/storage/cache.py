"""Copies on this machine of what can be had again: bounded, the longest unused go first."""

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
"""Environment variable: what all copies together may have, such as `200GiB`."""
DEFAULT_LIMIT = "100GiB"
KEPT_S = 3600.0
"""Copies used since then stay even above the limit: somebody may be reading them."""


def fetched() -> Path:
    """Folder of copies from buckets."""
    return files.cache_folder() / "s3"


def tokenised() -> Path:
    """Folder of rows as tokens."""
    return files.cache_folder() / "tokens"


@contextlib.contextmanager
def holding(copy: Path) -> Iterator[None]:
    """Alone with a copy, to look at it or to make it; it counts as used, and others make room.

    Raises StorageError when the environment's limit is no size.
    """
    most = _limit()
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _lock(copy):
        yield
        if copy.exists():
            os.utime(copy)
    make_room(most)


def every() -> list[Path]:
    """All copies, a file or a folder each."""
    found = [*fetched().glob("*"), *tokenised().glob("*")]
    return [path for path in found if path.suffix != ".lock"]


def make_room(most: int, *, kept_s: float = KEPT_S) -> list[Path]:
    """Delete the longest unused copies until the rest has at most so many bytes; what went."""
    sizes = {copy: files.size_of(copy) for copy in every()}
    total, gone = sum(sizes.values()), list[Path]()
    for copy in sorted(sizes, key=_used):
        if total <= most:
            break
        if _delete(copy, kept_s):
            gone.append(copy)
            total -= sizes[copy]
    return gone


def _limit() -> int:
    text = os.environ.get(LIMIT) or DEFAULT_LIMIT
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise StorageError(f"{LIMIT} is {text!r}, which is no size; write 100GiB or so") from None


def _lock(copy: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(copy.with_suffix(".lock"))


def _used(copy: Path) -> float:
    """When; 0 for what is gone by now."""
    with contextlib.suppress(OSError):
        return copy.stat().st_mtime
    return 0.0


def _delete(copy: Path, kept_s: float) -> bool:
    """Unless it is held, or was used lately."""
    with contextlib.suppress(filelock.Timeout), _lock(copy).acquire(timeout=0):
        if time.time() - _used(copy) >= kept_s:
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink(missing_ok=True)
            return True
    return False
