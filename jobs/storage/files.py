"""Files that are there whole or not at all, also after a loss of power."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobs.errors import StorageError, first_line

PARTIAL = ".partial-"
"""Start of the name of what is being written; left behind by a killed process, and collected."""


def home() -> Path:
    """Where this machine keeps what is its own: `WINNOW_HOME`, or `~/.winnow`."""
    return Path(os.environ.get("WINNOW_HOME", "~/.winnow")).expanduser()


def cache_folder() -> Path:
    """Where this machine keeps copies."""
    return home() / "cache"


def partial_of(path: Path) -> Path:
    """A name beside a path that no other process uses."""
    return path.with_name(f"{PARTIAL}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write beside the place, flush, and rename; raises StorageError and leaves what was there.

    `mode` is what the file may be at most; the process's mask takes from it.
    """
    partial = partial_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise failed(path, "written", error) from None


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files that are not there yet, in their order: all of them, or none.

    Raises:
        StorageError: if one exists already or cannot be written.
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
    """Bytes of a file, or of all files in a folder; what vanishes meanwhile has none."""
    total = 0
    for path in (folder, *inside(folder)):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def inside(folder: Path) -> Iterator[Path]:
    """Everything at any depth; a folder that vanishes meanwhile is passed over, unlike by rglob."""
    for place, folders, names in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *names))


def sync_folder(folder: Path) -> None:
    """Wait until a folder's new names are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def failed(path: Path, what: str, error: OSError) -> StorageError:
    """An error of the operating system in words."""
    reason = error.strerror or str(error)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "; free space there, then go on with --resume" if is_full else ""
    return StorageError(f"{path} cannot be {what}: {reason}{advice}", is_full=is_full)


def first_of(error: Exception) -> OSError:
    """The operating system's error in one of a library, or the first that copying a folder met."""
    if isinstance(error, OSError) and not isinstance(error, shutil.Error):
        return error
    is_full = os.strerror(errno.ENOSPC) in str(error)
    number = errno.ENOSPC if is_full else errno.EIO
    return OSError(number, os.strerror(errno.ENOSPC) if is_full else first_line(error))


def expanded(path: str) -> Path:
    """A path with the home folder in place of `~`; as it is written if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def exists(path: Path) -> bool:
    """Whether a path names something; names that are too long for the disk name nothing."""
    try:
        return path.exists()
    except OSError:
        return False


def is_here(path: str, folder: Path) -> bool:
    """Whether a name in a job file, which stands in `folder`, is a path of this machine."""
    return path.startswith((".", "~")) or exists(folder / path)


def matching(path: str, folder: Path = Path()) -> list[Path]:
    """Files and folders that a path names, or a pattern with `*`, `?` or `[`, sorted by name.

    Relative ones start from `folder`.
    """
    place = folder.absolute() / expanded(path)
    if exists(place):
        return [place]
    if not any(character in path for character in "*?["):
        return []
    try:
        return sorted(Path(place.anchor).glob(str(place.relative_to(place.anchor))))
    except (OSError, ValueError):  # `a**b`, and names that are too long
        return []
