"""What a folder and a bucket both keep to, on a real disk and a real S3 server."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.errors import CheckpointError, StorageError
from jobs.storage import client, manifest
from jobs.storage.bucket import BucketObjects
from jobs.storage.local import LocalObjects
from jobs.storage.objects import Objects
from jobs.storage.storage import open_storage

FILES = {"a.bin": b"\0" * 70_000, "deep/er/b.json": b"{}", "empty": b""}


@pytest.fixture(params=["folder", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Empty storage."""
    if request.param == "folder":
        return LocalObjects(tmp_path / "storage")
    return open_storage(request.getfixturevalue("bucket")).objects


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with a manifest."""

    def act(**more: bytes) -> Path:
        folder = tmp_path / "made"
        for name, content in {**FILES, **more}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        manifest.write(folder, {"step": 3})
        return folder

    return act


def test_content_is_read_as_it_was_written(objects: Objects) -> None:
    assert objects.read("a/b.json") is None
    objects.write("a/b.json", b"one")
    objects.write("a/b.json", b"two")
    found = objects.read("a/b.json")
    assert found is not None
    assert found.content == b"two"
    objects.delete("a/b.json")
    objects.delete("a/b.json")
    assert objects.read("a/b.json") is None


def test_a_swap_needs_the_newest_tag(objects: Objects) -> None:
    first = objects.swap("x", b"1", None)
    assert first
    assert objects.swap("x", b"2", None) is None
    second = objects.swap("x", b"2", first)
    assert second
    assert objects.swap("x", b"3", first) is None
    found = objects.read("x")
    assert found is not None
    assert (found.content, found.tag) == (b"2", second)
    assert objects.swap("nothing", b"1", second) is None


def test_lines_add_up(objects: Objects) -> None:
    objects.append("log", b"one\n")
    objects.append("log", b"two\n")
    found = objects.read("log")
    assert found is not None
    assert found.content == b"one\ntwo\n"


def test_what_is_there_is_listed(objects: Objects) -> None:
    for key in ("a/one/x", "a/two/y", "a/z", "ab/c"):
        objects.write(key, b"123")
    assert [(entry.key, entry.size) for entry in objects.entries("a")] == [
        ("a/one/x", 3),
        ("a/two/y", 3),
        ("a/z", 3),
    ]
    assert objects.children("a") == ["one", "two"]
    assert objects.children("nothing") == []
    assert {entry.key for entry in objects.entries("")} == {"a/one/x", "a/two/y", "a/z", "ab/c"}


def test_a_folder_comes_back_with_every_file(objects: Objects, make: Callable[..., Path]) -> None:
    objects.put_folder("models/m/1", make())
    objects.put_folder("models/m/1", make())  # the same once more
    place = objects.get_folder("models/m/1")
    assert {name: (place / name).read_bytes() for name in FILES} == FILES
    objects.put_folder("models/m/1", make(more=b"new"))
    assert (objects.get_folder("models/m/1") / "more").read_bytes() == b"new"
    objects.delete_folder("models/m/1")
    objects.delete_folder("models/m/1")
    with pytest.raises(CheckpointError, match="models/m/1"):
        objects.get_folder("models/m/1")


@pytest.mark.parametrize("name", [*FILES, manifest.MANIFEST])
def test_a_flipped_bit_in_any_file_is_found_and_named(
    objects: Objects, make: Callable[..., Path], name: str
) -> None:
    objects.put_folder("v", make())
    found = objects.read(f"v/{name}")
    assert found is not None
    content = bytearray(found.content or b"\0")
    content[len(content) // 2] ^= 4
    objects.write(f"v/{name}", bytes(content))
    with pytest.raises(CheckpointError, match=name.rpartition("/")[2]):
        objects.get_folder("v")


def test_a_missing_file_is_named(objects: Objects, make: Callable[..., Path]) -> None:
    objects.put_folder("v", make())
    objects.delete("v/deep/er/b.json")
    with pytest.raises(CheckpointError, match=r"deep/er/b\.json is missing"):
        objects.get_folder("v")


def test_half_an_upload_is_not_there(objects: Objects, make: Callable[..., Path]) -> None:
    folder = make()
    for name in FILES:
        objects.write(f"v/{name}", (folder / name).read_bytes())
    with pytest.raises(CheckpointError):
        objects.get_folder("v")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a/../../b", "a//b", "a/./b", "a\0b"])
def test_keys_stay_below_the_storage(objects: Objects, key: str) -> None:
    for act in (objects.read, objects.delete, lambda key: objects.write(key, b"")):
        with pytest.raises(StorageError, match="is not a key"):
            act(key)


def test_a_manifest_cannot_name_files_elsewhere(
    objects: Objects, make: Callable[..., Path]
) -> None:
    objects.put_folder("v", make())
    values = {"files": {"../a.bin": "0" * 64}}
    altered = {manifest.OWN: manifest._own(values), **values}
    objects.write(f"v/{manifest.MANIFEST}", json.dumps(altered).encode())
    with pytest.raises(CheckpointError, match="outside its folder"):
        objects.get_folder("v")


def test_a_server_that_is_not_there_ends_in_a_sentence(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"s3://.* cannot be read: .*127.0.0.1:9") as caught:
        BucketObjects(bucket, patience_s=0.5).read("x")
    assert caught.value.is_passing


def test_a_bucket_that_is_not_there_is_not_asked_again(bucket: str) -> None:
    with pytest.raises(StorageError, match="bucket") as caught:
        BucketObjects("s3://no-such-bucket-here/x").append("x", b"1\n")
    assert not caught.value.is_passing


def test_wrong_keys_are_not_asked_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    client.client_of.cache_clear()
    with pytest.raises(StorageError, match="cannot be read") as caught:
        BucketObjects(bucket).read("x")
    client.client_of.cache_clear()
    assert not caught.value.is_passing


def test_objects_are_downloaded_at_once_and_absent_ones_are_named(
    bucket: str, tmp_path: Path
) -> None:
    both = threading.Barrier(2)

    class Meeting(BucketObjects):
        """Downloads nothing before two downloads have begun."""

        def download(self, key: str, path: Path) -> bool:
            both.wait(timeout=10)
            return super().download(key, path)

    objects = Meeting(bucket)
    for key in ("a", "b", "c"):
        objects.write(key, key.encode())
    places = {key: tmp_path / key for key in ("a", "gone", "b", "c")}
    assert objects.download_all(places) == ["gone"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        key: key.encode() for key in "abc"
    }
