"""A real S3 server for tests, SeaweedFS, and a proxy before it that makes trouble."""

import contextlib
import http.client
import http.server
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KEYS = {
    "AWS_ACCESS_KEY_ID": "winnow",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "winnow-tests"
LONGEST_PORT = 50_000
"""SeaweedFS takes a second port 10,000 above each."""
START_S = 60.0


def free_port() -> int:
    """One whose partner above is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            if port < LONGEST_PORT:
                with contextlib.suppress(OSError):
                    second.bind(("127.0.0.1", port + 10_000))
                    return port


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL of a server with an empty bucket; it ends with the block."""
    weed = shutil.which("weed") or str(Path(sys.executable).with_name("weed"))
    port = free_port()
    options = {
        "-dir": str(folder),
        "-ip": "127.0.0.1",
        "-ip.bind": "127.0.0.1",
        "-master.port": str(free_port()),
        "-master.telemetry": "false",
        "-volume.port": str(free_port()),
        "-filer.port": str(free_port()),
        "-s3.port": str(port),
        "-s3.port.iceberg": "0",
        "-s3.port.lance": "0",
        "-volume.max": "20",
        "-master.volumeSizeLimitMB": "64",
    }
    command = [weed, "server", "-filer", "-s3"]
    command += [f"{name}={value}" for name, value in options.items()]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **KEYS}, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        _make_bucket(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # it would wait for half a minute
        process.wait()


def _make_bucket(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    import boto3
    import botocore.exceptions

    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "region_name": "us-east-1"}
    keys["aws_secret_access_key"] = KEYS["AWS_SECRET_ACCESS_KEY"]
    deadline = time.monotonic() + START_S
    while True:
        try:
            boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket=BUCKET)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text(encoding="utf-8")[-2000:]) from None
            time.sleep(0.05)
        else:
            return


@dataclass
class Faults:
    """Shares of requests that meet each kind of trouble; what came of it is counted."""

    shares: Mapping[str, float]
    """Of `error`, `slow_down`, `skew`, `reset`, `lost`, `truncated`, `cut_upload` and `stall`."""
    seed: int = 0
    stall_s: float = 5.0
    met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw, self._lock = random.Random(self.seed), threading.Lock()

    def next(self) -> str | None:
        """What the next request meets."""
        with self._lock:
            drawn = self._draw.random()
            for kind, share in self.shares.items():
                drawn -= share
                if drawn < 0:
                    self.met[kind] += 1
                    return kind
            self.met["none"] += 1
            return None


@contextlib.contextmanager
def proxy(target: str, faults: Faults) -> Iterator[str]:
    """The URL of a proxy before a server."""
    host = target.removeprefix("http://")

    class Handler(_Handler):
        upstream, trouble = host, faults

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_address[1]}"
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


REFUSALS = {
    "error": (500, "InternalError"),
    "slow_down": (503, "SlowDown"),
    "skew": (403, "RequestTimeTooSkewed"),
}


class _Handler(http.server.BaseHTTPRequestHandler):
    upstream: str
    trouble: Faults
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _act(self) -> None:
        kind = self.trouble.next()
        length = int(self.headers.get("Content-Length") or 0)
        if kind == "cut_upload" and length > 1:
            self.rfile.read(length // 2)
            return self._reset()
        if self.headers.get("Expect", "").lower() == "100-continue" and length == 0:
            self.close_connection = True
        body = self.rfile.read(length) if length else None
        if kind in REFUSALS:
            status, code = REFUSALS[kind]
            return self._refuse(status, code)
        if kind == "stall":
            time.sleep(self.trouble.stall_s)
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if kind in ("lost", "reset"):  # a write has taken effect by now
            return self._reset()
        self._pass(answer, content, cut=kind == "truncated" and len(content) > 1)
        return None

    def _pass(self, answer: http.client.HTTPResponse, content: bytes, *, cut: bool) -> None:
        self.send_response(answer.status)
        hop = {"transfer-encoding", "connection", "content-length", "date", "server"}
        for name, value in answer.getheaders():
            if name.lower() not in hop:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        length = answer.getheader("Content-Length") if is_head else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if not is_head:
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    def _refuse(self, status: int, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        """Close so that the other side sees a reset."""
        self.wfile.flush()
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True


for _method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
    setattr(_Handler, f"do_{_method}", _Handler._act)
