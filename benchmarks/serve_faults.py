"""Whether requests are lost while an endpoint is updated, rolled back, and parts of it are killed.

    python benchmarks/serve_faults.py NAME [--storage .winnow] [--engine openvino-bf16]
        [--requests 100000] [--clients 16] [--replicas 2] [--out FILE]

NAME needs two published versions. Clients of a process of their own ask without a pause, on a local
cluster of our own; a quarter of them send head and body of a request in two packets, as Python's
http.client does and all that is built on it, some time apart, as over a network. Others ask seldom,
over connections that they keep. Meanwhile, spread over the requests: limits changed in place, a
rolling update of the precision, a canary in two steps to the newest version, a rollback to the one
before, a replica killed, and Ray Serve's controller killed. Every answer's status and version is
written down with when it was asked for, and of one that failed its headers and how its body begins:
they tell who answered.
Prints what failed and what answered with the wrong version after a switch; the exit code tells.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.storage.storage import Storage, open_storage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402 - the script runs from a clone, installed or not
import numpy as np  # noqa: E402
import psutil  # noqa: E402

from cluster import local, session  # noqa: E402
from jobs.spec.serve import ServeSpec  # noqa: E402
from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.records import registry  # noqa: E402
from serve.tools.load_generator import sentences  # noqa: E402
from serve.version import ModelVersion  # noqa: E402

Headers = Mapping[str, str] | http.client.HTTPMessage
ROUTE = "/faults"
SETTLE_S = 10.0
"""How long an endpoint may answer before the next thing happens to it, at least."""
OK = 200
TOLD_BYTES = 400
"""How much of a failed answer's body is kept."""
NO_VERSION = "none"
TIMEOUT_S = 60
APART_S = 0.002
"""Between head and body of a request in two packets."""
SELDOM, PAUSE_S = 8, 20.0
"""Clients that keep their connection while they do not ask, and how long that is at most."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--storage", type=Path, default=Path(".winnow"))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Serve, ask, disturb, count."""
    arguments = parse()
    if arguments.ask:
        asyncio.run(ask(arguments.ask, arguments.clients))
        return 0
    quiet_libraries()
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{above}" if above else str(ROOT)
    storage: Storage = open_storage(arguments.storage)
    newest = [version for version, _ in registry.every(storage) if version.name == arguments.name]
    if len(newest) < 2:
        raise SystemExit(f"{arguments.name} needs two published versions in {storage}")
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        os.environ["WINNOW_HOME"] = home
        try:
            with session.connect() as cluster:
                result = disturb(newest[1], newest[0], arguments, Path(home), cluster.serve_port)
        finally:
            local.stop()
    now = datetime.now(UTC)
    out = arguments.out or ROOT / f"benchmarks/results/serve-faults-{now:%Y%m%d-%H%M%S}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    print(f"written to {out}")
    return int(bool(result["failed"] or result["wrong_version"]))


def disturb(
    old: ModelVersion, new: ModelVersion, arguments: Any, home: Path, port: int
) -> dict[str, Any]:
    """One thing after another, while clients ask."""
    from cluster import discovery
    from serve.deploy import deployment

    found = {version.id: version for version in (old, new)}

    def deploy(version: ModelVersion, **fields: Any) -> None:
        copies = {"min": arguments.replicas, "max": arguments.replicas}
        values = {"route": ROUTE, "engine": arguments.engine, "replicas": copies, **fields}
        deployment.deploy(
            version,
            ServeSpec.model_validate(values),
            discovery.discover(),
            port=port,
            find_version=lambda _, identity: found[identity],
            log=say,
        )

    rollout = {"steps": [20, 100], "hold": "5s", "gate": ["agreement>=0"]}
    events: list[tuple[str, Callable[[], object], ModelVersion]] = [
        ("limits", lambda: deploy(old, batching={"max_batch_size": 32}), old),
        ("rolling update", lambda: deploy(old, precision="fp32"), old),
        ("canary", lambda: deploy(new, rollout=rollout), new),
        ("rollback", lambda: deploy(old), old),
        ("replica killed", lambda: kill("ray::ServeReplica"), old),
        ("controller killed", lambda: kill("ray::ServeController"), old),
    ]
    deploy(old)
    answers, happened = home / "answers", list[dict[str, Any]]()
    with clients(f"http://127.0.0.1:{port}{ROUTE}", arguments, answers) as process:
        for number, (name, act, version) in enumerate(events, start=1):
            wait_for(answers, process, arguments.requests * number // (len(events) + 1))
            say(name)
            begin = time.time()
            act()
            end = time.time()
            happened.append({"event": name, "begin": begin, "end": end, "version": version.id})
            say(f"{name} took {end - begin:.1f} s")
            time.sleep(SETTLE_S)
        wait_for(answers, process, arguments.requests)
        process.terminate()
        process.wait(60)
    return count(answers, happened, old.id, {old.id, new.id}) | {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "replicas": arguments.replicas,
        "clients": arguments.clients,
    }


def count(
    answers: Path, happened: list[dict[str, Any]], first: str, known: set[str]
) -> dict[str, Any]:
    """Failures, and wrong versions among what was asked for after a switch had ended."""
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    begins = np.array([row[0] for row in rows])
    order = np.argsort(begins)
    failed: list[dict[str, Any]] = []
    wrong = 0
    for index in order:
        _, seconds, status, version, told = rows[index]
        at = begins[index]
        started = [event for event in happened if event["begin"] <= at]
        ended = [event for event in happened if event["end"] <= at]
        if status != str(OK):
            when = started[-1]["event"] if started else "before"
            row = {"status": status, "after": when, "at": utc(at), "seconds": seconds}
            failed.append(row | {"told": told})
        elif len(started) == len(ended):  # nothing is being switched
            wrong += version != (ended[-1]["version"] if ended else first)
        else:
            wrong += version not in known
    took = np.array([row[1] for row in rows])
    return {
        "requests": len(rows),
        "failed": len(failed),
        "failed_after": Counter(row["after"] for row in failed),
        "failures": failed[:20],
        "statuses": Counter(row[2] for row in rows),
        "wrong_version": int(wrong),
        "versions": Counter(row[3] for row in rows),
        "seconds": {name: float(np.quantile(took, q)) for name, q in QUANTILES.items()},
        "events": [
            {"event": e["event"], "at": utc(e["begin"]), "took_s": e["end"] - e["begin"]}
            for e in happened
        ],
    }


def utc(seconds: float) -> str:
    """Seconds since the epoch as a time of day, to be looked up in logs."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")[:-3]


QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}


def kill(title: str) -> None:
    """SIGKILL for one process of our cluster by its title."""
    running = local.running()
    assert running is not None
    for process in psutil.Process(running.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "".join(process.cmdline()[:1]).startswith(title):
                process.send_signal(signal.SIGKILL)
                return
    raise SystemExit(f"no process {title} is there to be killed")


@contextlib.contextmanager
def clients(url: str, arguments: Any, answers: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that asks until it is told to end."""
    words = [sys.executable, __file__, arguments.name, "--ask", url]
    words += ["--clients", str(arguments.clients)]
    answers.touch()
    with answers.open("wb") as output:
        process = subprocess.Popen(words, stdout=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(answers: Path, process: "subprocess.Popen[bytes]", lines: int) -> None:
    """Until so many requests were answered."""
    while process.poll() is None:
        with answers.open("rb") as handle:
            if sum(1 for _ in handle) >= lines:
                return
        time.sleep(1)


async def ask(url: str, concurrency: int) -> None:
    """Ask until told to end; a line for each request, see `note`."""
    texts, ending, apart = sentences(), threading.Event(), concurrency // 4
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ending.set)

    async def keep_asking(pause_s: float = 0.0) -> None:
        connector = aiohttp.TCPConnector(keepalive_timeout=10 * TIMEOUT_S)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            while not ending.is_set():
                await asyncio.sleep(random.uniform(0, pause_s))
                at, begin = time.time(), time.perf_counter()
                try:
                    body = {"inputs": random.choice(texts)}
                    async with client.post(f"{url}/predict", json=body) as answer:
                        content = await answer.read()
                    note(at, begin, answer.status, answer.headers, content)
                except (aiohttp.ClientError, TimeoutError) as error:
                    note(at, begin, type(error).__name__, {}, str(error).encode())

    with ThreadPoolExecutor(max(1, apart)) as threads:
        await asyncio.gather(
            *(keep_asking() for _ in range(concurrency - apart)),
            *(keep_asking(PAUSE_S) for _ in range(SELDOM)),
            *(
                loop.run_in_executor(threads, ask_in_two_packets, url, texts, ending)
                for _ in range(apart)
            ),
        )


def ask_in_two_packets(url: str, texts: Sequence[str], ending: threading.Event) -> None:
    """As `ask`, over one connection while it lasts."""
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    while not ending.is_set():
        at, begin = time.time(), time.perf_counter()
        try:
            body = json.dumps({"inputs": random.choice(texts)}).encode()
            client.putrequest("POST", f"{parts.path}/predict")
            client.putheader("content-type", "application/json")
            client.putheader("content-length", len(body))
            client.endheaders()
            time.sleep(APART_S)
            client.send(body)
            with client.getresponse() as answer:
                content = answer.read()
            note(at, begin, answer.status, answer.headers, content)
        except (http.client.HTTPException, OSError) as error:
            note(at, begin, type(error).__name__, {}, str(error).encode())
            client.close()


def note(at: float, begin: float, status: int | str, headers: Headers, content: bytes) -> None:
    """One line on stdout, by one call, as several threads write.

    When, seconds, status or error, version, and of a failure its headers and how its body begins.
    """
    told = "" if status == OK else f"{dict(headers)} {content[:TOLD_BYTES]!r}"
    version = headers.get("x-model-version", NO_VERSION)
    line = [at, time.perf_counter() - begin, str(status), version, told]
    sys.stdout.write(json.dumps(line) + "\n")


def say(text: str) -> None:
    """A line on stderr with the time."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
