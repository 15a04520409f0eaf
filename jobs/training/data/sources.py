"""Reads the rows of a source: local files, S3, a folder saved by `datasets`, or the hub."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.errors import DataError, StorageError, first_line, listed, shown
from jobs.spec.data import SourceSpec
from jobs.storage import cache, files, manifest
from jobs.storage.bucket import BucketObjects
from jobs.training.data import readers, table
from jobs.training.data.table import Table


def read(source: SourceSpec) -> Table:
    """Returns all rows of a source.

    Raises:
        DataError: if the source does not exist or cannot be read.
        StorageError: if S3 cannot be reached, so that a later attempt may succeed.
    """
    if not source.is_file:
        return _read_dataset(source)
    return table.joined(
        {str(place): readers.read_file(place, name) for place, name in _files(source)}
    )


def identity(source: SourceSpec) -> str:
    """Returns a cache key of the rows: the SHA-256 of files, or the data set's fingerprint.

    Raises:
        DataError: if the source does not exist or cannot be read.
    """
    if not source.is_file:
        return f"{source.shown}/{source.name}/{source.split}/{_dataset(source)._fingerprint}"
    try:
        found = [manifest.sha256(place) + place.suffix.lower() for place, _ in _files(source)]
    except OSError:
        raise DataError(f"{source.shown} does not exist") from None
    return "/".join(found)


def splits(source: SourceSpec) -> tuple[str, ...]:
    """Returns the names of the splits in a saved folder; empty if it holds a single split."""
    if source.is_file or not source.is_local:
        return ()
    import datasets

    found = _load(source)
    return tuple(found) if isinstance(found, datasets.DatasetDict) else ()


def _files(source: SourceSpec) -> list[tuple[Path, str]]:
    """Returns the local path of each file, with its name for errors."""
    found = []
    for path in source.paths:
        places = [_downloaded(path)] if path.startswith("s3://") else files.matching(path)
        if not places:
            raise DataError(f"{path} does not exist")
        found += [(place, path if len(places) == 1 else str(place)) for place in places]
    return found


def _read_dataset(source: SourceSpec) -> Table:
    import datasets
    import pyarrow as pa

    from jobs.training.data import arrow_tables

    found = _dataset(source)
    kinds = {name: getattr(kind, "feature", kind) for name, kind in found.features.items()}
    names = {  # of labels, and of lists of labels
        name: tuple(kind.names)
        for name, kind in kinds.items()
        if isinstance(kind, datasets.ClassLabel)
    }
    if not len(found):
        raise DataError(f"{source.shown} has no rows")
    try:
        return arrow_tables.of_arrow(found.with_format("arrow")[:], names)
    except pa.ArrowException as error:
        raise DataError(f"{source.shown} cannot be read: {first_line(error)}") from None


def _dataset(source: SourceSpec) -> Any:
    import datasets

    found = _load(source)
    if isinstance(found, datasets.DatasetDict):
        if source.split not in found:
            raise DataError(
                f"{source.shown} has no split {shown(source.split)}; it has {listed(found)}"
            )
        return found[source.split]
    return found


def _load(source: SourceSpec) -> Any:
    """Loads a data set, or all splits of a saved folder that holds several."""
    import datasets  # takes seconds, and files do not need it

    datasets.disable_progress_bars()
    path = source.shown
    try:
        if not source.is_local:
            return datasets.load_dataset(path, source.name, split=source.split)
        return datasets.load_from_disk(str(files.expanded(path)))
    except FileNotFoundError as error:
        is_there = files.expanded(path).is_dir()
        reason = f"cannot be read: {first_line(error)}" if is_there else "does not exist"
        raise DataError(f"{path} {reason}") from None
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error.__cause__ or error)
        raise DataError(f"{path} cannot be read: {reason}") from None


def _downloaded(url: str) -> Path:
    """Returns the cached copy of a file in S3; downloads each version of its content once.

    Raises:
        DataError: if the file does not exist or cannot be read.
        StorageError: if S3 cannot be reached, so that a later attempt may succeed.
    """
    place = urlsplit(url)
    key = place.path.lstrip("/")
    try:
        bucket = BucketObjects(f"s3://{place.netloc}")
        name = hashlib.sha256(f"{url}/{bucket.tag(key)}".encode()).hexdigest()[:32]
        path = cache.fetched() / f"{name}{''.join(Path(key).suffixes[-2:])}"
        with cache.holding(path):
            if not path.exists():
                bucket.download(key, path)
    except StorageError as error:
        if error.is_passing:
            raise
        raise DataError(str(error)) from None
    return path
