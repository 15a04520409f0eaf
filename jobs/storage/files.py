"""Files that are complete or absent, also after a loss of power; and paths that users write."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobs.errors import StorageError, first_line
from jobs.spec.data import SourceSpec

PARTIAL = ".partial-"
"""Prefix of the names of unfinished files; those of killed processes are collected as garbage."""


def home() -> Path:
    """Returns the folder of this machine's own files: `WINNOW_HOME`, or `~/.winnow`."""
    return Path(os.environ.get("WINNOW_HOME", "~/.winnow")).expanduser()


def cache_folder() -> Path:
    """Returns the folder of this machine's cache."""
    return home() / "cache"


def partial_of(path: Path) -> Path:
    """Returns a path in the same folder, for writing, that no other process uses."""
    return path.with_name(f"{PARTIAL}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Writes a file completely or not at all: writes beside it, flushes, and renames.

    `mode`: the file's permissions, from which the process's umask takes.

    Raises:
        StorageError: if the file cannot be written; its earlier content then stays.
    """
    with replacing(path) as partial:
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "wb") as handle:
            handle.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` for the block to write; it then replaces `path`, flushed.

    If the block fails, `path` stays as it was.

    Raises:
        StorageError: if the file cannot be written.
    """
    partial = partial_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise failed(path, "written", error) from None
        raise


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Creates files in the order of the mapping: all of them, or none.

    Raises:
        StorageError: if a file exists already or cannot be written.
    """
    written: list[Path] = []
    try:
        for path, content in contents.items():
            _create(path, content, written)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _create(path: Path, content: bytes, created: list[Path]) -> None:
    try:
        with path.open("xb") as handle:
            created.append(path)
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
    except FileExistsError:
        raise StorageError(
            f"{path} exists already; move it, or write into another folder"
        ) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def size_of(folder: Path) -> int:
    """Returns the bytes of a file or of all files in a folder; files deleted meanwhile count 0."""
    total = 0
    for path in (folder, *inside(folder)):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def inside(folder: Path) -> Iterator[Path]:
    """Yields all files and folders at any depth; skips folders deleted meanwhile, unlike rglob."""
    for place, folders, names in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *names))


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's directory entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def failed(path: Path, done: str, error: OSError) -> StorageError:
    """Returns the StorageError for an error of the operating system.

    `done` is the participle of the failed operation, such as `written`.
    """
    reason = error.strerror or str(error)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "; free space there, then continue with --resume" if is_full else ""
    return StorageError(f"{path} cannot be {done}: {reason}{advice}", is_full=is_full)


def first_of(error: Exception) -> OSError:
    """Returns the operating system's error behind a library's error, or behind shutil.Error."""
    if isinstance(error, OSError) and not isinstance(error, shutil.Error):
        return error
    is_full = os.strerror(errno.ENOSPC) in str(error)
    number = errno.ENOSPC if is_full else errno.EIO
    return OSError(number, os.strerror(errno.ENOSPC) if is_full else first_line(error))


def expanded(path: str) -> Path:
    """Returns a path with `~` replaced by the home folder, or unchanged if the user is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def exists(path: Path) -> bool:
    """Returns whether a path exists; False for names that are too long for the file system."""
    try:
        return path.exists()
    except OSError:
        return False


def is_here(path: str, folder: Path) -> bool:
    """Returns whether a name in a job file is a path on this machine.

    `folder`: the folder of the job file.
    """
    return path.startswith((".", "~")) or exists(folder / path)


def local_files(source: SourceSpec, folder: Path = Path()) -> list[Path] | None:
    """Returns the files of a source; None if it is not of files of this machine.

    Relative paths start from `folder`.
    """
    if not source.is_local or not source.is_file:
        return None
    return [place for path in source.paths for place in matching(path, folder)]


def matching(path: str, folder: Path = Path()) -> list[Path]:
    """Returns the files and folders that a path or a pattern with `*`, `?` or `[` matches, sorted.

    Relative paths start from `folder`.
    """
    place = folder.absolute() / expanded(path)
    if exists(place):
        return [place]
    if not any(character in path for character in "*?["):
        return []
    try:
        return sorted(Path(place.anchor).glob(str(place.relative_to(place.anchor))))
    except (OSError, ValueError):  # such as `a**b`, and names that are too long
        return []
