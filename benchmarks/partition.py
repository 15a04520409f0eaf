"""Cut two nodes of a cluster apart while one trains and the other holds an endpoint.

    sudo python benchmarks/partition.py [--cut-s 60] [--out FILE]

Two network namespaces on one machine, joined by a cable: in one the head, the endpoint and the
clients, in the other the only node with (simulated) accelerators, under a supervisor that starts
it again whenever it ends. Training begins there, the cable is cut, and put back. Written: whether
the run ended, how long that took, and what the endpoint answered meanwhile. Needs root and Linux;
nothing outside the two namespaces is touched.
"""

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import faults  # noqa: E402 - runs from a clone, installed or not

HEAD, NODE = "10.77.7.1", "10.77.7.2"
PORT = 6379
RAY = str(Path(sys.executable).with_name("ray"))
LIMIT_S = 500


def main() -> int:
    """Set up, cut, heal, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cut-s", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    mark = f"wn{os.getpid() % 10_000}"
    with tempfile.TemporaryDirectory(prefix="winnow-partition-") as name, cabled(mark):
        folder = Path(name)
        faults.rows(folder)
        faults.model(folder / "model")
        with cluster(mark, folder) as environment:
            result = partition(mark, folder, environment, arguments.cut_s)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0 if result["right"] else 1


@contextlib.contextmanager
def cabled(mark: str) -> Iterator[None]:
    """Two namespaces with a cable between them."""
    ends = {"a": HEAD, "b": NODE}
    for side in ends:
        ip("netns", "add", f"{mark}{side}")
    try:
        ip("link", "add", f"{mark}va", "type", "veth", "peer", "name", f"{mark}vb")
        for side, address in ends.items():
            ip("link", "set", f"{mark}v{side}", "netns", f"{mark}{side}")
            inside = ("-n", f"{mark}{side}")
            ip(*inside, "addr", "add", f"{address}/24", "dev", f"{mark}v{side}")
            ip(*inside, "link", "set", f"{mark}v{side}", "up")
            ip(*inside, "link", "set", "lo", "up")
        yield
    finally:
        for side in ends:
            ip("netns", "del", f"{mark}{side}")


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True)


def inside(mark: str, side: str, *words: str) -> list[str]:
    """A command in a namespace."""
    return ["ip", "netns", "exec", f"{mark}{side}", *words]


@contextlib.contextmanager
def cluster(mark: str, folder: Path) -> Iterator[dict[str, str]]:
    """A head on one side, and a node on the other that is started again whenever it ends."""
    environment = owner(folder)
    common = ["--block", "--min-worker-port=0", "--max-worker-port=0"]
    head = [RAY, "start", "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--num-cpus=3"]
    labels = '{"winnow.io/sku": "T4", "winnow.io/simulated": "true"}'
    node = [RAY, "start", f"--address={HEAD}:{PORT}", f"--node-ip-address={NODE}", "--num-cpus=2"]
    node += ["--num-gpus=1", f"--labels={labels}", *common]
    over, started = threading.Event(), []

    def supervise() -> None:
        while not over.is_set():
            process = start(inside(mark, "b", *node), environment, folder / "node.log")
            started.append(process)
            process.wait()
            over.wait(2)

    started.append(start(inside(mark, "a", *head, *common), environment, folder / "head.log"))
    time.sleep(15)
    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    time.sleep(10)
    try:
        yield environment
    finally:
        over.set()
        for process in started:
            end(process)
        supervisor.join()


def stranger() -> dict[str, str]:
    """An environment of this clone's without Ray's settings and tokens."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join((str(Path(RAY).parent), os.environ["PATH"]))
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "PATH": path}


def owner(folder: Path) -> dict[str, str]:
    """The environment of those who have a cluster's token, which is made in the folder."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32), encoding="utf-8")
    token.chmod(0o600)
    own = {"RAY_AUTH_TOKEN_PATH": str(token), "WINNOW_HOME": str(folder / "home")}
    return {**stranger(), "RAY_AUTH_MODE": "token", **own}


def start(command: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """A process whose words go to a file."""
    with log.open("ab") as handle:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=handle, stderr=handle, start_new_session=True
        )


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for each in (*parent.children(recursive=True), parent):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def partition(mark: str, folder: Path, environment: dict[str, str], cut_s: float) -> dict[str, Any]:
    """Deploy, train, cut, heal, wait for the end."""
    served, trained = folder / "served.yaml", folder / "trained.yaml"
    write(faults.job(folder, "served"), served, "served", {"accelerators": "cpu:1"}, epochs=1)
    write(faults.job(folder, "trained"), trained, "trained", {"accelerators": "T4:1"}, epochs=400)
    run = inside(mark, "a", sys.executable, "-m", "orchestrator", "run")
    at = ["--address", f"{HEAD}:{PORT}"]
    first = start([*run, str(served), *at], environment, folder / "served.log")
    if first.wait(LIMIT_S):
        raise SystemExit((folder / "served.log").read_text(encoding="utf-8")[-3000:])
    answers: list[tuple[float, bool]] = []
    with asking(mark, environment, answers):
        second = start([*run, str(trained), *at], environment, folder / "trained.log")
        await_text(folder / "trained.log", " fit 1", second)
        began = time.monotonic()
        ip("-n", f"{mark}a", "link", "set", f"{mark}va", "down")
        time.sleep(cut_s)
        ip("-n", f"{mark}a", "link", "set", f"{mark}va", "up")
        code = second.wait(LIMIT_S)
        took_s = time.monotonic() - began
    text = (folder / "trained.log").read_text(encoding="utf-8", errors="replace")
    notes = [line.strip() for line in text.splitlines() if "going on" in line or "lost" in line]
    during = Counter(good for at_s, good in answers if at_s - began < cut_s + 60)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cut_s": cut_s,
        "code": code,
        "from_cut_to_end_s": round(took_s, 1),
        "answered": during[True],
        "not_answered": during[False],
        "said": notes,
        "tracebacks": text.count("Traceback"),
        "right": code == 0 and not during[False] and during[True] > 0 and bool(notes),
        **({} if code == 0 else {"log": text[-3000:]}),
    }


def write(made: Path, path: Path, name: str, where: dict[str, str], *, epochs: int) -> None:
    """A job without a sweep; the first is served, the second only trained."""
    values = yaml.safe_load(made.read_text(encoding="utf-8"))
    del values["sweep"]
    values |= {"name": name}
    values["train"] |= {"epochs": epochs, "optimizer": {"lr": 0.001}}
    values["train"]["checkpoint"] = {"every": "50steps"}
    values["resources"] = {"any_of": [where], "wait": {"timeout": "300s"}}
    if name == "trained":
        del values["serve"]
    path.write_text(yaml.safe_dump(values), encoding="utf-8")


def await_text(path: Path, text: str, process: "subprocess.Popen[bytes]") -> None:
    """Until a log says something."""
    while text not in path.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None:
            raise SystemExit(path.read_text(encoding="utf-8")[-3000:])
        time.sleep(0.5)


CLIENT = """
import sys, time, httpx
while True:
    try:
        answer = httpx.post(sys.argv[1], json={"inputs": "a superb film"}, timeout=10)
        print(int(answer.status_code == 200), flush=True)
    except httpx.HTTPError:
        print(0, flush=True)
    time.sleep(0.2)
"""


@contextlib.contextmanager
def asking(
    mark: str, environment: dict[str, str], answers: list[tuple[float, bool]]
) -> Iterator[None]:
    """A client on the head's side that asks five times a second."""
    command = inside(
        mark, "a", sys.executable, "-c", CLIENT, "http://127.0.0.1:8000/reviews/predict"
    )
    client = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def listen() -> None:
        assert client.stdout
        answers.extend((time.monotonic(), line.strip() == "1") for line in client.stdout)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        client.kill()
        client.wait()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
