"""Secrets of a user stay where they are: in no file, no output and no list of processes."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from cluster.session import Connection
from jobs.errors import RunError, StorageError, redacted
from jobs.storage.bucket import BucketObjects
from jobs.storage.storage import open_storage
from tests import s3
from tests.builders import any_of, sweep
from tests.commands import call

POLL_S = 0.2
KEYS = ("HF_TOKEN", "SENTIMENT_TOKENS", "MLFLOW_TRACKING_PASSWORD", "LAB_PHRASE")


def write_job(folder: Path, reviews: Path, model: str, storage: str, **fields: object) -> Path:
    """A small job that goes through every stage."""
    values = {
        "version": 1,
        "name": "guarded",
        "model": {"base": model},
        "data": {
            "train": {"path": str(reviews / "train.csv")},
            "eval": {"path": str(reviews / "eval.csv")},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1, "global_batch_size": 16, "precision": "fp32"},
        "resources": {"any_of": any_of("cpu:1")},
        "sweep": sweep(
            {"train.micro_batch_size": [16]},
            probe={"warmup": "1ms", "duration": "1ms", "confirm": 0},
            objective={"minimize": "time"},
        ),
        "serve": {
            "route": "/guarded",
            "engine": "torch-fp32",
            "auth": {"tokens_from": "SENTIMENT_TOKENS"},
        },
        "storage": storage,
        **fields,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def winnow(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as a user would."""
    command = [sys.executable, "-m", "orchestrator", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, env=environment
    )


@contextlib.contextmanager
def command_lines() -> Iterator[set[str]]:
    """Everything that any process was started with, while the block runs."""
    seen, is_over = set[str](), threading.Event()

    def look() -> None:
        while not is_over.wait(POLL_S):
            for process in psutil.process_iter(["cmdline"]):
                seen.update(process.info["cmdline"] or ())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def holding(folder: Path, planted: Sequence[str]) -> list[Path]:
    """Files below a folder that have one of the planted words."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # sockets, and what is gone by now
            content = path.read_bytes() if path.is_file() else b""
            if any(word.encode() in content for word in planted):
                found.append(path)
    return found


def ask(url: str, own: dict[str, str]) -> list[str]:
    """What an endpoint answers without a token, with a wrong and with the right one."""
    body, right = {"inputs": "a superb film"}, f"Bearer {own['SENTIMENT_TOKENS']}"
    answers = [
        httpx.post(f"{url}/predict", json=body, headers=headers, timeout=30)
        for headers in (
            {},
            {"Authorization": f"Bearer {own['HF_TOKEN']}"},
            {"Authorization": right},
        )
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 200]
    scraped = httpx.get(f"{url}/metrics", headers={"Authorization": right}, timeout=30)
    return [f"{answer.headers} {answer.text}" for answer in (*answers, scraped)]


@pytest.mark.ray
@pytest.mark.e2e
def test_secrets_appear_in_no_file_and_no_output_of_a_run(
    ray_cluster: Connection,
    reviews: Path,
    tiny_model: str,
    tmp_path: Path,
) -> None:
    """Earns its minute: greps all that a run, its endpoint and Ray leave behind."""
    from serve.deploy import endpoints

    own = {name: f"planted-{secrets.token_hex(12)}" for name in KEYS}
    planted = [*own.values(), s3.KEYS["AWS_SECRET_ACCESS_KEY"]]
    storage = open_storage(f"s3://{s3.BUCKET}/{tmp_path.name}")
    wanted = ["HF_TOKEN", "LAB_PHRASE"]
    path = write_job(tmp_path, reviews, tiny_model, storage.url, secrets=wanted)
    environment = {**os.environ, **own}
    with command_lines() as lines:
        done = winnow(environment, "run", str(path), "--json")
        assert done.returncode == 0, done.stdout or done.stderr
        said = ask(json.loads(done.stdout)["endpoint"]["url"], own)
        said += [done.stdout, done.stderr]
        status = winnow(environment, "status", "--storage", storage.url)
        said += [status.stdout, status.stderr]
        for words in (("report",), ("models", "show", "guarded")):
            shown = call(tmp_path, *words, "--storage", storage.url, environment=own)
            assert shown.returncode == 0
            said += [shown.stdout, shown.stderr]
    assert not [text for text in (*said, *lines) if any(word in text for word in planted)]

    kept = {entry.key: storage.objects.read(entry.key) for entry in storage.objects.entries("")}
    assert any(key.endswith("receipt.json") for key in kept)
    secret = [word.encode() for word in planted]
    assert not [k for k, v in kept.items() if v and any(word in v.content for word in secret)]
    import ray

    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert (session / "logs").is_dir()
    for folder in (storage.folder, Path(os.environ["WINNOW_HOME"]), session):
        assert not holding(folder, planted)
    assert endpoints.remove("guarded")


def test_a_password_in_a_url_is_taken_out_of_what_libraries_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3.KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://someone:hidden-word@127.0.0.1:9")
    objects = BucketObjects("s3://bucket/prefix", patience_s=0.0)
    with pytest.raises(StorageError, match=re.escape("127.0.0.1:9")) as caught:
        objects.read("models/a")
    assert "hidden-word" not in str(caught.value)


def test_a_job_file_with_a_password_is_refused_without_repeating_it(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    uri = "https://someone:hidden-word@tracking.example"
    path = write_job(tmp_path, reviews, tiny_model, "runs", tracking={"mlflow": {"uri": uri}})
    done = call(tmp_path, "validate", str(path))
    assert done.returncode == 2
    assert "tracking.mlflow.uri: has a user or a password in its URL" in done.stderr
    assert "hidden-word" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no route to http://me:word@host:80/x", "no route to http://***@host:80/x"),
        ("Illegal header value b'Bearer first-of-two'", "Illegal header value b'Bearer ***'"),
        ("user@example.org wrote s3://bucket/a@b", "user@example.org wrote s3://bucket/a@b"),
        ("a token of short", "a token of short"),
    ],
)
def test_errors_hold_no_secrets(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKENS", "first-of-two, second-of-two")
    monkeypatch.setenv("OTHER_KEY", "short")
    assert redacted(text) == expected
    assert str(RunError(text)) == expected
