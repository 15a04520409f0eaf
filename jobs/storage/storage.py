"""Storage as a job names it, and where this machine works on what is in it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from jobs.storage.bucket import BucketObjects
from jobs.storage.files import cache_folder, expanded
from jobs.storage.local import LocalObjects
from jobs.storage.objects import Objects

S3_SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class Storage:
    """Where runs, versions and measurements are kept."""

    objects: Objects = field(compare=False)
    folder: Path
    """On this machine: the storage itself, or a place to work in where it is a bucket."""

    @property
    def url(self) -> str:
        """As a job would name it."""
        return self.objects.url

    @property
    def is_bucket(self) -> bool:
        """Whether `folder` is only a place to work in."""
        return isinstance(self.objects, BucketObjects)

    def __str__(self) -> str:
        return self.url


def open_storage(place: str | Path) -> Storage:
    """A folder, or `s3://bucket/prefix`; nothing is created yet."""
    if str(place).startswith(S3_SCHEME):
        bucket = BucketObjects(str(place))
        name = hashlib.sha256(bucket.url.encode()).hexdigest()[:16]
        return Storage(bucket, cache_folder() / "work" / name)
    folder = expanded(str(place)).resolve()
    return Storage(LocalObjects(folder), folder)
