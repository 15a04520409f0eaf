"""Storage whose server fails, stalls, cuts and forgets: what was promised is there, whole."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.storage import manifest
from jobs.storage.bucket import BucketObjects
from orchestrator.records import aliases
from orchestrator.records.aliases import Move
from tests import s3

TROUBLE = {
    "error": 0.03,
    "slow_down": 0.03,
    "skew": 0.01,
    "lost": 0.03,
    "reset": 0.02,
    "truncated": 0.03,
    "cut_upload": 0.03,
    "stall": 0.002,
}
CLIENTS = 8
few_and_many = pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, bucket: str, s3_url: str) -> Iterator[s3.Faults]:
    """What requests from now on meet."""
    found = s3.Faults(TROUBLE, seed=11)
    with s3.proxy(s3_url, found) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        yield found


def made(folder: Path, number: int) -> Path:
    """A folder of three files that no other number has."""
    draw = random.Random(number)
    folder.mkdir(parents=True)
    for name, size in (("config.json", 200), ("weights", 30_000), ("vocabulary", 3_000)):
        (folder / name).write_bytes(draw.randbytes(size))
    manifest.write(folder, {"number": number})
    return folder


@few_and_many
def test_folders_come_back_whole(
    count: int, bucket: str, faults: s3.Faults, tmp_path: Path
) -> None:
    """Earns its time: every kind of trouble is met by real clients of a real server.

    The slow one catches what two kinds of trouble in one operation bring, which 40 rarely meet.
    """
    objects = BucketObjects(bucket)

    def cycle(number: int) -> None:
        folder = made(tmp_path / str(number), number)
        objects.put_folder(f"models/{number}", folder)
        place = objects.get_folder(f"models/{number}")
        assert manifest.verify(place)["number"] == number
        for name in manifest.read(folder)["files"]:
            assert (place / name).read_bytes() == (folder / name).read_bytes()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(cycle, range(count)))
    rare = {"stall"} if count < 200 else set[str]()
    assert all(faults.met[kind] for kind in TROUBLE.keys() - rare)


@few_and_many
def test_moves_at_once_are_one_after_another(count: int, bucket: str, faults: s3.Faults) -> None:
    """Earns its time: answers are lost on their way, and a move that is repeated counts once.

    The slow one catches what two kinds of trouble in one operation bring, which 40 rarely meet.
    """
    spans: list[tuple[float, float, Move]] = []
    lock = threading.Lock()

    def move(number: int) -> None:
        begin = time.monotonic()
        made = aliases.move(BucketObjects(bucket), "m", "deployed", lambda _: f"v{number}")
        with lock:
            spans.append((begin, time.monotonic(), made))

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(move, range(count)))
    history = aliases.history(BucketObjects(bucket), "m", "deployed")
    assert [made.number for made in history] == list(range(1, count + 1))
    assert sorted(made.number for *_, made in spans) == [made.number for made in history]
    assert {made for *_, made in spans} == set(history)
    for begin, _, later in spans:  # who began after another's answer comes after it
        earlier = [made.number for _, end, made in spans if end < begin]
        assert all(number < later.number for number in earlier)
    assert faults.met["lost"]
