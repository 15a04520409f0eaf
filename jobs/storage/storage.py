"""The storage that a job names, with the folder where this machine works on its content."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from jobs.storage.files import cache_folder, expanded
from jobs.storage.objects import Objects

S3_SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of runs, model versions and measurements."""

    objects: Objects = field(compare=False)
    folder: Path
    """On this machine: the storage itself, or a working folder if the storage is a bucket."""

    @property
    def url(self) -> str:
        """The value of `storage` in a job file that names it."""
        return self.objects.url

    @property
    def is_bucket(self) -> bool:
        """Whether the storage is a bucket, so that `folder` is only a working folder."""
        return self.url.startswith(S3_SCHEME)

    def __str__(self) -> str:
        return self.url


def open_storage(place: str | Path) -> Storage:
    """Opens a folder or `s3://bucket/prefix`; creates nothing."""
    if str(place).startswith(S3_SCHEME):
        from jobs.storage.bucket import BucketObjects  # slow, and folders do not need it

        bucket = BucketObjects(str(place))
        name = hashlib.sha256(bucket.url.encode()).hexdigest()[:16]
        return Storage(bucket, cache_folder() / "work" / name)
    from jobs.storage.local import LocalObjects  # slow, and those who only name S3 do not need it

    folder = expanded(str(place)).resolve()
    return Storage(LocalObjects(folder), folder)
