"""What browsers that watch the dashboard cost the machine that serves it, and how fast it lists.

    python benchmarks/dashboard.py [--runs 500] [--models 50] [--browsers 10] [--seconds 60]
        [--out FILE]

Starts a local cluster with one simulated T4, and `winnow ui` over a storage with so many runs and
models; one of the runs goes on and says something every second. Listing: wall seconds of the
requests of the pages of runs and models, the first one and later ones. Watching: a third of the
browsers show the page of runs, a third that of the run that goes on, a third the cluster, and they
ask what these pages ask. The share of a core is that of the server and of the process that observes
the cluster for it, with and without browsers. Prints and writes JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402 - the script runs from a clone, installed or not
import psutil  # noqa: E402

from cluster import local  # noqa: E402
from jobs.spec.quantities import AcceleratorRequest  # noqa: E402
from orchestrator.records import registry, runs  # noqa: E402
from serve.http import auth  # noqa: E402
from tests.builders import free_port, job  # noqa: E402
from tests.orchestrator.records import acting  # noqa: E402
from tests.orchestrator.ui import stored  # noqa: E402

EVERY_S = 5.0
"""How often a page reads its list or its run again, as `runs.js` and `run.js` do."""
START_S = 60.0
SETTLE_S = 20.0
"""From the first look at the cluster until its process has started and everything is read once."""
ROUNDS = 20


def main() -> int:
    """Start all, measure, and say what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/dashboard.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winnow-dashboard-") as name:
        folder = Path(name)
        os.environ["WINNOW_HOME"] = f"{folder}/home"
        with stored.everything(folder) as have:
            fill(have, folder, arguments)
            local.start([AcceleratorRequest("T4", 1)])
            try:
                with dashboard(folder) as (url, token, process):
                    result = asyncio.run(measured(url, token, process, have, arguments))
            finally:
                local.stop()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}
    asked = {name: getattr(arguments, name) for name in ("runs", "models", "browsers", "seconds")}
    text = json.dumps(head | asked | result, indent=2)
    print(text)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def fill(have: stored.Stored, folder: Path, arguments: argparse.Namespace) -> None:
    """Adds copies of a run that completed, and models, up to the wanted numbers."""
    first = runs.find(have.storage, have.completed[0]).folder
    present = len(have.completed) + 2
    for number in range(arguments.runs - present):
        shutil.copytree(first, first.with_name(f"{first.name[:-6]}{number:06x}"))
    for number in range(arguments.models - 1):
        made = acting.checkpoint(folder / f"made-{number}", f"weights {number}")
        spec = job(name=f"model-{number}")
        registry.publish(spec, made, ("a", "b"), run_id=f"run-{number}", storage=have.storage)


@contextlib.contextmanager
def dashboard(folder: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Yields the address of `winnow ui`, a token that may read, and the process."""
    port, tokens = free_port(), folder / "tokens"
    token = auth.add_token(tokens, "eve", "read")
    words = [sys.executable, "-m", "orchestrator", "ui", "--storage", str(folder / ".winnow")]
    words += ["--port", str(port), "--tokens", str(tokens)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL  # what it cannot do is on stderr
    with subprocess.Popen(words, stdout=quiet, env=environment) as process:
        try:
            yield f"http://127.0.0.1:{port}", token, psutil.Process(process.pid)
        finally:
            process.terminate()


async def measured(
    url: str,
    token: str,
    process: psutil.Process,
    have: stored.Stored,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Returns the seconds that listing takes, and what the dashboard uses of a core."""
    headers = {"Authorization": f"Bearer {token}"}
    limits = aiohttp.ClientTimeout(total=None, sock_read=60.0)
    async with aiohttp.ClientSession(url, headers=headers, timeout=limits) as session:
        await answering(session, process)
        listing = {each: await listed(session, each) for each in ("runs", "models")}
        await fetch(session, "cluster")
        await asyncio.sleep(SETTLE_S)
        saying = asyncio.create_task(say(have))
        alone = await share(process, arguments.seconds)
        pages = [(on_runs, on_run, on_cluster)[n % 3] for n in range(arguments.browsers)]
        counts = [0] * len(pages)
        watching = [
            asyncio.create_task(page(session, have.running, counts, number))
            for number, page in enumerate(pages)
        ]
        await asyncio.sleep(SETTLE_S)
        before = list(counts)
        watched = await share(process, arguments.seconds)
        answers = sum(counts) - sum(before)
        for task in (saying, *watching):
            if task.done():
                task.result()  # a page that failed watches nothing
            task.cancel()
        await asyncio.gather(saying, *watching, return_exceptions=True)
    return {"listing_s": listing, "without_browsers": alone, "watched": watched, "answers": answers}


async def answering(session: aiohttp.ClientSession, process: psutil.Process) -> None:
    """Waits until the dashboard answers."""
    async with asyncio.timeout(START_S):
        while process.status() != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                return await fetch(session, "me")
            await asyncio.sleep(0.2)
    raise SystemExit("winnow ui has ended")


async def fetch(session: aiohttp.ClientSession, path: str) -> None:
    """Reads an answer to its end; one that is none raises."""
    async with session.get(f"/api/{path}", raise_for_status=True) as answer:
        await answer.read()


async def listed(session: aiohttp.ClientSession, path: str) -> dict[str, float]:
    """Returns the seconds of the first request, and median and longest of later ones."""
    took = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        await fetch(session, path)
        took.append(time.perf_counter() - begin)
    median_s = statistics.median(took[1:])
    return {
        name: round(value, 3)
        for name, value in (("first", took[0]), ("median", median_s), ("longest", max(took[1:])))
    }


async def say(have: stored.Stored) -> None:
    """The run that goes on says something every second."""
    run, step = runs.find(have.storage, have.running), 6
    while True:
        await asyncio.to_thread(
            stored.say, run, "fit", f"{step}/9000 loss {1 / step:.4f}, 100 samples/s, 3 s left"
        )
        step += 1
        await asyncio.sleep(1.0)


async def share(process: psutil.Process, seconds: float) -> dict[str, Any]:
    """Returns the shares of a core that the server and the observing process take for a while.

    A process that ends or begins meanwhile does not count; without browsers nothing is observed.
    """
    begin, before = time.perf_counter(), used(process)
    await asyncio.sleep(seconds)
    passed_s, after = time.perf_counter() - begin, used(process)
    found = {}
    for name, own in (("server", {process.pid}), ("observing", after.keys() - {process.pid})):
        cpu_s = sum(after[each][0] - before[each][0] for each in own & before.keys())
        mib = sum(after[each][1] for each in own) >> 20
        found[name] = {"core_share": round(cpu_s / passed_s, 4), "mib": mib}
    return found


def used(process: psutil.Process) -> dict[int, tuple[float, int]]:
    """Returns CPU seconds and bytes of the server and of what it has started, by process."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            times = each.cpu_times()
            found[each.pid] = (times.user + times.system, each.memory_info().rss)
    return found


async def on_runs(session: aiohttp.ClientSession, _: str, counts: list[int], number: int) -> None:
    """Asks what the page of runs asks, every few seconds."""
    while True:
        await fetch(session, "runs")
        counts[number] += 1
        await asyncio.sleep(EVERY_S)


async def on_run(session: aiohttp.ClientSession, run: str, counts: list[int], number: int) -> None:
    """The page of a run that goes on."""
    read_s = 0.0
    async with session.get(f"/api/runs/{run}/events", raise_for_status=True) as stream:
        async for line in stream.content:
            counts[number] += line.startswith(b"data:")
            if time.monotonic() - read_s >= EVERY_S:
                await fetch(session, f"runs/{run}")
                read_s = time.monotonic()


async def on_cluster(
    session: aiohttp.ClientSession, _: str, counts: list[int], number: int
) -> None:
    """The pages of endpoints, queue and devices."""
    async with session.get("/api/cluster/events", raise_for_status=True) as stream:
        async for line in stream.content:
            counts[number] += line.startswith(b"data:")


if __name__ == "__main__":
    sys.exit(main())
