"""Named content in S3, or in a server that speaks its protocol.

Conditional writes are S3's `If-None-Match` and `If-Match`, of 2024; a server that ignores them is
not usable.
"""

import contextlib
import functools
import hashlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.errors import CheckpointError, StorageError
from jobs.storage import cache, client, files, manifest
from jobs.storage.client import Result
from jobs.storage.objects import Entry, Found, checked

CHUNK_BYTES = 2**20
"""What is read at a time."""


class BucketObjects:
    """A prefix of a bucket."""

    def __init__(self, url: str, *, patience_s: float = client.PATIENCE_S) -> None:
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
            answer = client.s3().get_object(Bucket=self._bucket, Key=self._name(key))
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
        self._patiently("deleted", key, lambda: client.s3().delete_object(**place), absent=None)

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
        with ThreadPoolExecutor(client.TRANSFERS) as pool:
            list(pool.map(lambda name: self._upload(f"{key}/{name}", folder / name), names))
        self.write(place, content)

    def get_folder(self, key: str) -> Path:
        """A copy in this machine's cache, fetched where it is not there yet or was altered."""
        found = self.read(f"{key}/{manifest.MANIFEST}")
        if found is None:
            raise CheckpointError(f"{self.url}/{key} does not exist, or is not whole")
        name = hashlib.sha256(f"{self.url}/{key}".encode() + found.content).hexdigest()[:16]
        copy = cache.fetched() / name
        place = copy / key.rpartition("/")[2]
        with cache.holding(copy):
            with contextlib.suppress(CheckpointError):
                manifest.verify(place)
                return place
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
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
        page = self._patiently("listed", ".", lambda: client.s3().list_multipart_uploads(**options))
        return [
            (found["Key"], found["UploadId"], found["Initiated"])
            for found in page.get("Uploads", ())
        ]

    def abort_upload(self, key: str, identity: str) -> None:
        """Drop the parts of an upload that never ended; `key` is the bucket's."""
        options = {"Bucket": self._bucket, "Key": key, "UploadId": identity}
        self._patiently("deleted", key, lambda: client.s3().abort_multipart_upload(**options))

    def download(self, key: str, path: Path) -> bool:
        """Fetch one file, whole or not at all; False where nothing is."""
        partial = files.partial_of(path)
        place = {"Bucket": self._bucket, "Key": self._name(key)}

        def act() -> bool:
            body = client.s3().get_object(**place)["Body"]
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
        return str(self._head(key)["ETag"])

    def size(self, key: str) -> int:
        """Bytes of the content. Raises StorageError where nothing is."""
        return int(self._head(key)["ContentLength"])

    def _head(self, key: str) -> Any:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        return self._patiently("read", key, lambda: client.s3().head_object(**place))

    def _pages(self, prefix: str, **options: Any) -> Iterator[dict[str, Any]]:
        begin = f"{self._name(prefix)}/" if prefix else self._prefix
        place = {"Bucket": self._bucket, "Prefix": begin, **options}
        while True:
            act = functools.partial(client.s3().list_objects_v2, **place)
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
            with ThreadPoolExecutor(client.TRANSFERS) as pool:
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
        options = {"ExtraArgs": client.encryption(), "Config": client.transfer_config()}
        self._patiently(
            "written", key, lambda: client.s3().upload_file(str(path), **place, **options)
        )

    def _put(self, key: str, content: bytes, **condition: str) -> str:
        place = {"Bucket": self._bucket, "Key": self._name(key)}
        answer = client.s3().put_object(Body=content, **place, **condition, **client.encryption())
        return str(answer["ETag"])

    def _name(self, key: str) -> str:
        return self._prefix + checked(key)

    def _patiently(self, what: str, key: str, act: Callable[[], Result], **answers: None) -> Any:
        words = f"{self.url}/{key} cannot be {what}"
        return client.with_retries(words, act, self._patience_s, **answers)
