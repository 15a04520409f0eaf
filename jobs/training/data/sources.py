"""Reading rows from csv, tsv, jsonl and parquet files, local or in S3, and from the hub."""

import csv
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import datasets

from jobs.errors import DataError, StorageError
from jobs.spec.data import FILE_FORMATS, SourceSpec
from jobs.storage import copies, manifest
from jobs.storage.bucket import BucketObjects


def read(source: SourceSpec) -> Any:
    """A `datasets.Dataset` of all rows; raises DataError when the source is not usable."""
    datasets.disable_progress_bars()
    try:
        if not source.is_file:
            return datasets.load_dataset(source.path, source.name, split=source.split)
        suffix = Path(source.path).suffix.lower()
        options: dict[str, Any] = {}
        if suffix in (".csv", ".tsv"):
            options = {"keep_default_na": False}  # "None" and "NA" are words, not gaps
        if suffix == ".tsv":
            options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
        paths = {"train": str(local_file(source))}
        table = datasets.load_dataset(
            FILE_FORMATS[suffix], data_files=paths, split="train", **options
        )
    except FileNotFoundError:
        raise DataError(f"{source.path} does not exist") from None
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        if "corresponds to no data" in reason:
            raise DataError(f"{source.path} has no rows") from None
        raise DataError(f"{source.path} cannot be read: {reason}") from None
    if not len(table):
        raise DataError(f"{source.path} has no rows")
    return table


def identity(source: SourceSpec) -> str:
    """What the rows are, for a cache key: a file's SHA-256, else the data set's fingerprint."""
    if source.is_file:
        try:
            return manifest.sha256(local_file(source)) + Path(source.path).suffix.lower()
        except OSError:
            raise DataError(f"{source.path} does not exist") from None
    return f"{source.path}/{source.name}/{source.split}/{read(source)._fingerprint}"


def require_columns(table: Any, columns: tuple[str, ...], source: SourceSpec) -> None:
    """Raise DataError when a column is not there."""
    for column in columns:
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise DataError(f"{source.path} has no column {column!r}; its columns are {known}")


def local_file(source: SourceSpec) -> Path:
    """The file on this machine; one in S3 is fetched once for each version of its content.

    Raises DataError, or StorageError where the server may answer again later.
    """
    if not source.path.startswith("s3://"):
        return Path(source.path)
    place = urlsplit(source.path)
    key = place.path.lstrip("/")
    try:
        bucket = BucketObjects(f"s3://{place.netloc}")
        name = hashlib.sha256(f"{source.path}/{bucket.tag(key)}".encode()).hexdigest()[:32]
        path = copies.fetched() / f"{name}{Path(key).suffix}"
        with copies.holding(path):
            if not path.exists():
                bucket.download(key, path)
    except StorageError as error:
        if error.is_passing:
            raise
        raise DataError(str(error)) from None
    return path
