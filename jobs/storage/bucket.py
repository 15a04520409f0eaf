"""A storage in S3: single objects, and folders with a manifest."""

import contextlib
import hashlib
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs.errors import CheckpointError
from jobs.storage import cache, client, files, manifest
from jobs.storage.bucket_keys import BucketKeys


class BucketObjects(BucketKeys):
    """The objects below one prefix of a bucket; implements `Objects`."""

    def put_folder(self, key: str, folder: Path) -> None:
        """Uploads a folder's files, then its manifest: without a manifest a folder does not exist.

        Uploads nothing if the bucket already holds the same files.
        """
        names, place = manifest.read(folder)["files"], f"{key}/{manifest.MANIFEST}"
        content = (folder / manifest.MANIFEST).read_bytes()
        if self._has_files(place, names):
            return
        self.delete(place)
        with ThreadPoolExecutor(client.TRANSFERS) as pool:
            list(pool.map(lambda name: self.upload(f"{key}/{name}", folder / name), names))
        self.write(place, content)

    def get_folder(self, key: str) -> Path:
        """Returns a copy in this machine's cache; downloads it if it is missing or was altered.

        Raises:
            CheckpointError: if the bucket has no manifest for it, or a file is missing or altered.
        """
        found = self.read(f"{key}/{manifest.MANIFEST}")
        if found is None:
            raise CheckpointError(f"{self.url}/{key} does not exist or is incomplete")
        name = hashlib.sha256(f"{self.url}/{key}".encode() + found.content).hexdigest()[:16]
        copy = cache.fetched() / name
        place = copy / key.rpartition("/")[2]
        with cache.holding(copy):
            with contextlib.suppress(CheckpointError):
                manifest.verify(place)
                return place
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            self._download_folder(key, found.content, place)
        return place

    def download_all(self, places: Mapping[str, Path]) -> list[str]:
        """Downloads objects, several at once, to the path of each; returns the keys without object.

        Raises:
            StorageError: if the bucket cannot be read or a file cannot be written.
        """
        with ThreadPoolExecutor(client.TRANSFERS) as pool:
            found = list(pool.map(self.download, places.keys(), places.values()))
        return [key for key, is_there in zip(places, found, strict=True) if not is_there]

    def delete_folder(self, key: str) -> None:
        """Deletes the manifest first, so that no reader takes the remaining files for a folder."""
        self.delete(f"{key}/{manifest.MANIFEST}")
        for entry in list(self.entries(key)):
            self.delete(entry.key)

    def _has_files(self, place: str, names: dict[str, str]) -> bool:
        there = self.read(place)
        with contextlib.suppress(CheckpointError):
            return there is not None and manifest.parse(there.content, place)["files"] == names
        return False

    def _download_folder(self, key: str, content: bytes, place: Path) -> None:
        partial = files.partial_of(place)
        partial.mkdir()
        (partial / manifest.MANIFEST).write_bytes(content)
        try:
            names = list(manifest.read(partial)["files"])
            for folder in {(partial / name).parent for name in names}:
                folder.mkdir(parents=True, exist_ok=True)
            self.download_all({f"{key}/{name}": partial / name for name in names})
            manifest.verify(partial)  # a file that was not downloaded fails here too
            partial.rename(place)
        except CheckpointError as error:
            message = str(error).replace(str(partial), f"{self.url}/{key}")
            raise CheckpointError(message) from None
        except OSError as error:
            raise files.failed(place, "written", error) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
