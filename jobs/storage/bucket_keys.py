"""Keys and their content in S3, or in a server that speaks its protocol.

`swap` needs conditional writes (`If-None-Match` and `If-Match`, in S3 since 2024); a server that
ignores these headers cannot be used.
"""

import functools
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.errors import StorageError
from jobs.storage import client, files
from jobs.storage.client import Result
from jobs.storage.objects import Entry, Found, checked

CHUNK_BYTES = 2**20
"""Bytes that a download reads at a time."""


class _AbsentError(Exception):
    """A key does not exist."""


class BucketKeys:
    """Reads and writes single objects below one prefix of a bucket."""

    def __init__(self, url: str, *, patience_s: float = client.PATIENCE_S) -> None:
        """Opens `url`, which is `s3://bucket` or `s3://bucket/prefix`, without any request.

        `patience_s`: how long a request that fails is repeated.
        """
        place = urlsplit(url)
        if place.scheme != "s3" or not place.netloc:
            raise StorageError(f"{url!r} does not name a bucket; write s3://bucket/prefix")
        self._bucket, prefix = place.netloc, place.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._patience_s = patience_s

    @property
    def url(self) -> str:
        """The URL `s3://bucket/prefix`, without a slash at its end."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, key: str) -> Found | None:
        """Returns the content of a key with its ETag, or None if the key does not exist."""

        def request() -> Found:
            response = client.s3().get_object(Bucket=self._bucket, Key=self._name(key))
            return Found(response["Body"].read(), response["ETag"])

        found: Found | None = self._with_retries("read", key, request, absent=None)
        return found

    def write(self, key: str, content: bytes) -> None:
        """Writes the content of a key and overwrites any earlier content."""
        self._with_retries("written", key, lambda: self._put(key, content))

    def swap(self, key: str, content: bytes, tag: str | None) -> str | None:
        """Writes by a conditional request; if its response is lost, reads the key to decide."""
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        written: str | None = self._with_retries(
            "written", key, lambda: self._put(key, content, **condition), changed=None, absent=None
        )
        if written is not None:
            return written
        found = self.read(key)
        return found.tag if found and found.content == content else None

    def append(self, key: str, line: bytes) -> None:
        """Adds a line by rewriting the whole object, and repeats if another writer was faster."""
        while True:
            found = self.read(key)
            old = found.content if found else b""
            if self.swap(key, old + line, found.tag if found else None):
                return
            now = self.read(key)  # the response may be lost, and others may have added lines since
            if now and line in now.content[len(old) :]:
                return

    def delete(self, key: str) -> None:
        """Deletes a key; a key that does not exist is no error."""
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        self._with_retries("deleted", key, lambda: client.s3().delete_object(**place), absent=None)

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yields the keys below a prefix, requested in pages of a thousand."""
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                yield Entry(key, found["Size"], found["LastModified"])

    def children(self, prefix: str) -> list[str]:
        """Returns the names of the folders directly below a prefix."""
        pages = self._pages(prefix, Delimiter="/")
        names = [found["Prefix"] for page in pages for found in page.get("CommonPrefixes", ())]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def download(self, key: str, path: Path) -> bool:
        """Downloads an object to `path`, completely or not at all.

        Returns False if the key does not exist.
        """
        try:
            with files.replacing(path) as partial:
                self._fetch(key, partial)
        except _AbsentError:
            return False
        return True

    def upload(self, key: str, path: Path) -> None:
        """Uploads a file, in parts if it is large."""
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        options = {"ExtraArgs": client.encryption(), "Config": client.transfer_config()}
        self._with_retries(
            "written", key, lambda: client.s3().upload_file(str(path), **place, **options)
        )

    def tag(self, key: str) -> str:
        """Returns the object's ETag, which changes with its content.

        Raises:
            StorageError: if the key does not exist.
        """
        return str(self._head(key)["ETag"])

    def size(self, key: str) -> int:
        """Returns the size of the object in bytes.

        Raises:
            StorageError: if the key does not exist.
        """
        return int(self._head(key)["ContentLength"])

    def unfinished_uploads(self) -> list[tuple[str, str, datetime]]:
        """Returns key, upload id and start of unfinished multipart uploads.

        The bucket's owner pays for their parts until the upload is aborted.
        """
        options = {"Bucket": self._bucket, "Prefix": self._prefix}
        request = functools.partial(client.s3().list_multipart_uploads, **options)
        page = self._with_retries("listed", ".", request)
        return [
            (found["Key"], found["UploadId"], found["Initiated"])
            for found in page.get("Uploads", ())
        ]

    def abort_upload(self, key: str, identity: str) -> None:
        """Aborts an unfinished multipart upload and deletes its parts.

        `key` is the full key in the bucket, with the prefix.
        """
        options = {"Bucket": self._bucket, "Key": key, "UploadId": identity}
        self._with_retries("deleted", key, lambda: client.s3().abort_multipart_upload(**options))

    def _fetch(self, key: str, place: Path) -> None:
        """Writes an object to a new file; raises _AbsentError if the key does not exist."""

        def request() -> bool:
            body = client.s3().get_object(Bucket=self._bucket, Key=self._name(key))["Body"]
            with place.open("wb") as handle:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    handle.write(chunk)
            return True

        if not self._with_retries("read", key, request, absent=None):
            raise _AbsentError

    def _head(self, key: str) -> Any:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        return self._with_retries("read", key, lambda: client.s3().head_object(**place))

    def _pages(self, prefix: str, **options: Any) -> Iterator[dict[str, Any]]:
        begin = f"{self._name(prefix)}/" if prefix else self._prefix
        place = {"Bucket": self._bucket, "Prefix": begin, **options}
        while True:
            request = functools.partial(client.s3().list_objects_v2, **place)
            page = self._with_retries("listed", prefix or ".", request)
            yield page
            if not page.get("IsTruncated"):
                return
            place["ContinuationToken"] = page["NextContinuationToken"]

    def _put(self, key: str, content: bytes, **condition: str) -> str:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        encryption = client.encryption()
        response = client.s3().put_object(Body=content, **place, **condition, **encryption)
        return str(response["ETag"])

    def _name(self, key: str) -> str:
        return self._prefix + checked(key)

    def _with_retries(
        self, done: str, key: str, request: Callable[[], Result], **answers: None
    ) -> Any:
        failure = f"{self.url}/{key} cannot be {done}"
        return client.with_retries(failure, request, self._patience_s, **answers)
