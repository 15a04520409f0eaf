"""Opens text files, plain or compressed with gzip or zstd."""

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Opens a file as UTF-8 text with its line ends; a byte order mark is skipped."""
    with _open_bytes(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        yield text


def _open_bytes(path: Path) -> Any:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path)
        case ".zst":
            import pyarrow as pa  # slow, and other files do not need it

            return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        case _:
            return path.open("rb")


def first_invalid_line(path: Path) -> int:
    """Returns the 1-based number of the first line that is not UTF-8; 0 if there is none."""
    with _open_bytes(path) as stream:
        for number, line in enumerate(stream.read().split(b"\n"), 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return number
    return 0
