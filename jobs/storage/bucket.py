"""Named content in S3, or in a server that speaks its protocol.

Keys, region and endpoint come from boto3's own settings (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL_S3`
…), encryption from `WINNOW_S3_SSE` (`AES256` or `aws:kms`) and `WINNOW_S3_SSE_KEY_ID`. Conditional
writes are S3's `If-None-Match` and `If-Match`, of 2024; a server that ignores them is not usable.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import filelock

from jobs.errors import CheckpointError, StorageError, first_line
from jobs.storage import files, manifest
from jobs.storage.objects import Entry, Found, checked

Result = TypeVar("Result")

PATIENCE_S = 60.0
"""How long a server that fails is asked again."""
BACKOFF_S = (0.1, 8.0)
"""Longest pause before the first and before any later attempt; each is drawn evenly below it."""
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
"""Silence after which an attempt is given up."""
PART_BYTES = 16 * 2**20
"""Larger files go up in parts of this size."""
CHUNK_BYTES = 2**20
"""What is read at a time."""
TRANSFERS = 4
"""Files of a folder that are under way at once."""
CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
ABSENT = {"NoSuchKey", "404", "NotFound"}
PASSING = {
    "SlowDown",
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "RequestTimeTooSkewed",
}
PASSING_STATUS = 500
"""HTTP status from which on an answer is the server's trouble."""
THROTTLED_STATUS = 429


class BucketObjects:
    """A prefix of a bucket."""

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        """`url` is `s3://bucket` or `s3://bucket/prefix`."""
        place = urlsplit(url)
        if place.scheme != "s3" or not place.netloc:
            raise StorageError(f"{url!r} is no bucket; write s3://bucket/prefix")
        self._bucket, prefix = place.netloc, place.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._patience_s = patience_s

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, key: str) -> Found | None:
        """None where nothing is."""

        def act() -> Found:
            answer = _client().get_object(Bucket=self._bucket, Key=self._name(key))
            return Found(answer["Body"].read(), answer["ETag"])

        found: Found | None = self._patiently("read", key, act, absent=None)
        return found

    def write(self, key: str, content: bytes) -> None:
        """Put content there, whatever was there."""
        self._patiently("written", key, lambda: self._put(key, content))

    def swap(self, key: str, content: bytes, tag: str | None) -> str | None:
        """By a conditional write; after an answer that was lost, what is there decides."""
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        written: str | None = self._patiently(
            "written", key, lambda: self._put(key, content, **condition), changed=None, absent=None
        )
        if written is not None:
            return written
        found = self.read(key)
        return found.tag if found and found.content == content else None

    def append(self, key: str, line: bytes) -> None:
        """By writing all of it again, if nobody else did meanwhile."""
        while True:
            found = self.read(key)
            old = found.content if found else b""
            if self.swap(key, old + line, found.tag if found else None):
                return
            now = self.read(key)  # an answer may have been lost, and others have added to it
            if now and line in now.content[len(old) :]:
                return

    def delete(self, key: str) -> None:
        """Nothing happens where nothing is."""
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        self._patiently("deleted", key, lambda: _client().delete_object(**place), absent=None)

    def entries(self, prefix: str) -> Iterator[Entry]:
        """A page of a thousand at a time."""
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                yield Entry(key, found["Size"], found["LastModified"])

    def children(self, prefix: str) -> list[str]:
        """By S3's delimiter."""
        pages = self._pages(prefix, Delimiter="/")
        names = [found["Prefix"] for page in pages for found in page.get("CommonPrefixes", ())]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def put_folder(self, key: str, folder: Path) -> None:
        """Its files, then its manifest: what has none is not there."""
        names, place = manifest.read(folder)["files"], f"{key}/{manifest.MANIFEST}"
        content = (folder / manifest.MANIFEST).read_bytes()
        if self._holds(place, names):
            return
        self.delete(place)
        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(pool.map(lambda name: self._upload(f"{key}/{name}", folder / name), names))
        self.write(place, content)

    def get_folder(self, key: str) -> Path:
        """A copy in this machine's cache, fetched where it is not there yet or was altered."""
        found = self.read(f"{key}/{manifest.MANIFEST}")
        if found is None:
            raise CheckpointError(f"{self.url}/{key} does not exist, or is not whole")
        name = hashlib.sha256(f"{self.url}/{key}".encode() + found.content).hexdigest()[:16]
        place = files.cache_folder() / "s3" / name / key.rpartition("/")[2]
        place.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(place.with_suffix(".lock")):
            with contextlib.suppress(CheckpointError):
                manifest.verify(place)
                return place
            shutil.rmtree(place, ignore_errors=True)
            self._fetch(key, found.content, place)
        return place

    def delete_folder(self, key: str) -> None:
        """The manifest goes first."""
        self.delete(f"{key}/{manifest.MANIFEST}")
        for entry in list(self.entries(key)):
            self.delete(entry.key)

    def unfinished_uploads(self) -> list[tuple[str, str, datetime]]:
        """Key, id and begin of uploads in parts that never ended, whose parts are paid for."""
        options = {"Bucket": self._bucket, "Prefix": self._prefix}
        page = self._patiently("listed", ".", lambda: _client().list_multipart_uploads(**options))
        return [
            (found["Key"], found["UploadId"], found["Initiated"])
            for found in page.get("Uploads", ())
        ]

    def abort_upload(self, key: str, identity: str) -> None:
        """Drop the parts of an upload that never ended; `key` is the bucket's."""
        options = {"Bucket": self._bucket, "Key": key, "UploadId": identity}
        self._patiently("deleted", key, lambda: _client().abort_multipart_upload(**options))

    def download(self, key: str, path: Path) -> bool:
        """Fetch one file, whole or not at all; False where nothing is."""
        partial = files.partial_of(path)
        place = {"Bucket": self._bucket, "Key": self._name(key)}

        def act() -> bool:
            body = _client().get_object(**place)["Body"]
            with partial.open("wb") as handle:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    handle.write(chunk)
            return True

        try:
            if not self._patiently("read", key, act, absent=None):
                return False
            partial.replace(path)
        except OSError as error:
            raise files.failed(path, "written", error) from None
        finally:
            partial.unlink(missing_ok=True)
        return True

    def tag(self, key: str) -> str:
        """Changes with the content. Raises StorageError where nothing is."""
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        return str(self._patiently("read", key, lambda: _client().head_object(**place))["ETag"])

    def _pages(self, prefix: str, **options: Any) -> Iterator[dict[str, Any]]:
        begin = f"{self._name(prefix)}/" if prefix else self._prefix
        place = {"Bucket": self._bucket, "Prefix": begin, **options}
        while True:
            act = functools.partial(_client().list_objects_v2, **place)
            page = self._patiently("listed", prefix or ".", act)
            yield page
            if not page.get("IsTruncated"):
                return
            place["ContinuationToken"] = page["NextContinuationToken"]

    def _holds(self, place: str, names: dict[str, str]) -> bool:
        there = self.read(place)
        with contextlib.suppress(CheckpointError):
            return there is not None and manifest.parse(there.content, place)["files"] == names
        return False

    def _fetch(self, key: str, content: bytes, place: Path) -> None:
        partial = files.partial_of(place)
        partial.mkdir()
        (partial / manifest.MANIFEST).write_bytes(content)
        try:
            names = list(manifest.read(partial)["files"])
            for folder in {(partial / name).parent for name in names}:
                folder.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(TRANSFERS) as pool:
                list(pool.map(lambda name: self.download(f"{key}/{name}", partial / name), names))
            manifest.verify(partial)  # also finds what is missing
            partial.rename(place)
        except CheckpointError as error:
            words = str(error).replace(str(partial), f"{self.url}/{key}")
            raise CheckpointError(words) from None
        except OSError as error:
            raise files.failed(place, "written", error) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _upload(self, key: str, path: Path) -> None:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        options = {"ExtraArgs": _encryption(), "Config": _transfer_config()}
        self._patiently(
            "written", key, lambda: _client().upload_file(str(path), **place, **options)
        )

    def _put(self, key: str, content: bytes, **condition: str) -> str:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        answer = _client().put_object(Body=content, **place, **condition, **_encryption())
        return str(answer["ETag"])

    def _name(self, key: str) -> str:
        return self._prefix + checked(key)

    def _patiently(self, what: str, key: str, act: Callable[[], Result], **answers: None) -> Any:
        """Act until it works, `answers` telling which refusals are one. Raises StorageError."""
        import boto3.exceptions
        import botocore.exceptions

        deadline = time.monotonic() + self._patience_s
        for attempt in itertools.count():
            try:
                return act()
            except (
                botocore.exceptions.ClientError,
                botocore.exceptions.BotoCoreError,
                boto3.exceptions.Boto3Error,
                ConnectionError,
            ) as error:
                kind, reason = _understood(error)
            if kind in answers:
                return answers[kind]
            if kind != "passing" or time.monotonic() > deadline:
                text = f"{self.url}/{key} cannot be {what}: {reason}"
                raise StorageError(text, is_passing=kind == "passing")
            longest = min(BACKOFF_S[1], BACKOFF_S[0] * 2**attempt)
            time.sleep(random.uniform(0, longest))
        raise AssertionError("endless")


def _understood(error: Exception) -> tuple[str, str]:
    """Whether a failure is absent, changed, passing or refused, and its reason in words."""
    import boto3.exceptions
    import botocore.exceptions

    if isinstance(error, boto3.exceptions.S3UploadFailedError) and error.__context__:
        error = error.__context__  # what it wraps
    if isinstance(error, botocore.exceptions.ClientError):
        return _kind(error), _reason(error)
    lasting = (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.CredentialRetrievalError,
        botocore.exceptions.ParamValidationError,
        botocore.exceptions.ProfileNotFound,
        botocore.exceptions.NoRegionError,
    )
    return "refused" if isinstance(error, lasting) else "passing", first_line(error)


def _kind(error: Any) -> str:
    """What an answer of the server means: absent, changed, passing or refused."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in ABSENT:
        return "absent"
    if code in CHANGED:
        return "changed"
    is_passing = status >= PASSING_STATUS or status == THROTTLED_STATUS or code in PASSING
    return "passing" if is_passing else "refused"


def _reason(error: Any) -> str:
    details = error.response.get("Error", {})
    return str(details.get("Message") or details.get("Code") or error)


def _client() -> Any:
    """One for each process and server; safe for threads."""
    return _client_of(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


@functools.cache
def _client_of(_: str | None) -> Any:
    import boto3
    import botocore.config

    config = botocore.config.Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": 3, "mode": "standard"},
        max_pool_connections=4 * TRANSFERS,
    )
    return boto3.session.Session().client("s3", config=config)


def _transfer_config() -> Any:
    import boto3.s3.transfer

    return boto3.s3.transfer.TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=TRANSFERS
    )


def _encryption() -> dict[str, str]:
    kind, key = os.environ.get("WINNOW_S3_SSE"), os.environ.get("WINNOW_S3_SSE_KEY_ID")
    found = {"ServerSideEncryption": kind} if kind else {}
    return {**found, "SSEKMSKeyId": key} if kind and key else found
