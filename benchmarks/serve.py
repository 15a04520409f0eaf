"""How fast an endpoint answers beside other servers with the same engine, and at what cost.

    python benchmarks/serve.py NAME|--tiny|--blank [--storage .winnow] [--engine openvino-int8]
        [--seconds 20] [--rounds 3] [--concurrency 1 8 32 64] [--texts 1 …] [--accelerators cpu:1]
        [--batch 64] [--fronts auto] [--local] [--peer litserve=VENV/bin/python …]
        [--checkout FOLDER] [--out FILE]

Serves the published model NAME on a local cluster of our own (HAProxy, one replica of one thread)
and each peer that is named with a Python that has it (litserve, mosec, fastapi, bentoml, mlserver,
triton, infinity; the last with its own engine). All of them are up, one is asked at a time, by
turns. `wrk` sends the sentences of `winnow load`. Prints for each server and concurrency the median
of the rounds: texts/s, p50, p99, CPU microseconds per request of all its processes, and its texts
per CPU second (on a GPU per second) as a share of what the engine reached by itself before that
round. With `--texts` a request is a list of so many. The last column is what a request costs beside
the engine; with `--tiny`, a model of one narrow layer that is trained first, it is nearly all. With
`--blank` that model's ONNX graph gives zeros: then all that a request costs is the framework. `make
serve-bench` makes all that it needs first.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.storage.storage import open_storage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402
import psutil  # noqa: E402

from benchmarks import faults  # noqa: E402 - the script runs from a clone, installed or not
from cluster import local, session  # noqa: E402
from jobs.spec.serve import ServeSpec  # noqa: E402
from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.records import registry  # noqa: E402
from serve.tools.load_generator import sentences  # noqa: E402
from serve.version import ModelVersion  # noqa: E402

PEERS = ("litserve", "mosec", "fastapi", "bentoml", "mlserver", "triton", "infinity")
READY_S = 120.0
LOCAL_PORT = 18_000
"""Ours without Ray; peers have the ports after it."""
PAUSE_S = 1.0
SECONDS = 20.0
"""Of a round: with 32 clients some 300 batches of all of them, so that p99 is no longer that of one
slow batch. In rounds of 8 s it varied by a tenth."""
CEILING_TOKENS = {"cpu": (256, 512, 1024), "cuda": (2048, 4096, 8192)}
"""Padded tokens of a batch, among which the engine's own best is taken."""

LUA = """
local bodies = {{ {bodies} }}
local number = math.random(#bodies)
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  number = number % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[number])
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    summary.errors.status + summary.errors.read + summary.errors.timeout + summary.errors.connect))
end
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server: its URL and the process that is the parent of all others."""

    name: str
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Row:
    """One server at one concurrency for some seconds."""

    server: str
    concurrency: int
    texts_per_s: float
    texts: int
    """Of a request."""
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Per request, of all processes of the server."""
    failed: int
    cores: dict[str, float]
    """How many its processes kept busy, by what they are: what is the bottleneck."""
    ceiling: float
    """Texts per CPU second of the engine by itself before this round; per second on a GPU."""

    @property
    def beside_us(self) -> float:
        """CPU of a request beside the engine's own."""
        return self.cpu_us - 1e6 * self.texts / self.ceiling

    def of_engine(self, *, is_gpu: bool) -> float:
        """Texts per CPU second, or per second on a GPU, as a share of the engine's own."""
        rate = self.texts_per_s if is_gpu else 1e6 * self.texts / self.cpu_us
        return rate / self.ceiling


def main() -> int:
    """Serve, ask, compare, record."""
    arguments = asked_for()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is needed: apt install wrk")
    quiet_libraries()
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{above}" if above else str(ROOT)
    with contextlib.ExitStack() as stack:
        if arguments.tiny or arguments.blank:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            arguments.storage, arguments.name = train_tiny(folder), "tiny"
        version = registry.read(open_storage(arguments.storage), arguments.name)
        if arguments.blank:
            arguments.engine = "onnx-fp32"
            blank(version)
        engine, rows = compare(version, arguments)
    now = datetime.now(UTC)
    out = arguments.out or ROOT / "benchmarks/results" / f"serve-{now:%Y%m%d-%H%M%S}.json"
    result = {
        "date": now.isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "model": version.name,
        "engine": engine,
        "accelerators": arguments.accelerators,
        "fronts": arguments.fronts,
        "rows": [asdict(row) for row in rows],
    }
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(rows, is_gpu=device_of(arguments) == "cuda")
    print(f"written to {out}")
    return 0


def asked_for() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--tiny", action="store_true", help="a model that costs next to nothing")
    parser.add_argument(
        "--blank", action="store_true", help="onnx-fp32 of a model that costs nothing"
    )
    parser.add_argument("--storage", type=Path, default=Path(".winnow"))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--texts", type=int, nargs="+", default=[1], help="of a request")
    parser.add_argument("--accelerators", default="cpu:1")
    parser.add_argument("--batch", type=int, default=64, help="most texts of a forward pass")
    parser.add_argument("--fronts", default="auto", help="processes that take our requests")
    parser.add_argument("--local", action="store_true", help="ours as `winnow serve`, without Ray")
    parser.add_argument("--peer", action="append", default=[], help="name=python that has it")
    parser.add_argument("--checkout", type=Path, help="clone whose server is compared")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.name is None and not arguments.tiny and not arguments.blank:
        parser.error("name a published model, or give --tiny or --blank")
    return arguments


def train_tiny(folder: Path) -> Path:
    """Storage with a classifier of one narrow layer and MiniLM's tokenizer, called `tiny`."""
    faults.rows(folder)
    faults.model(folder / "model", layers=1)
    job = {
        "version": 1,
        "name": "tiny",
        "model": {"base": str(folder / "model")},
        "data": {
            "train": {"path": str(folder / "train.csv")},
            "eval": {"path": str(folder / "eval.csv")},
            "text": "text",
            "max_length": 64,
        },
        "train": {"epochs": 1, "global_batch_size": 32},
        "resources": {"any_of": [{"accelerators": "cpu:1"}]},
        "storage": str(folder / "storage"),
    }
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    winnow = [sys.executable, "-m", "orchestrator"]
    environment = {**os.environ, "WINNOW_HOME": str(folder / "home")}
    try:
        subprocess.run([*winnow, "train", folder / "job.yaml"], env=environment, check=True)
    finally:
        subprocess.run([*winnow, "down"], env=environment, check=True)
    return folder / "storage"


def blank(version: ModelVersion) -> None:
    """Put a graph of zeros where the endpoint, and peers, look for the model's own."""
    import torch

    class Zeros(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids[:, :2] * 0.0

    target = Path(version.exports) / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        Zeros(),
        (torch.ones(2, 8, dtype=torch.int64),),
        str(target),
        input_names=["input_ids"],
        output_names=["logits"],
        dynamic_axes={"input_ids": {0: "rows", 1: "width"}, "logits": {0: "rows"}},
        dynamo=False,
    )


def compare(version: ModelVersion, arguments: Any) -> tuple[str, list[Row]]:
    """Engine, and what it reaches by itself and every server with it, by turns."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        os.environ["WINNOW_HOME"] = home
        stack.callback(local.stop)
        texts = sentences()
        peers = [peer.split("=", 1) for peer in arguments.peer]
        names = ("winnow", "checkout", *(name for name, _ in peers))
        for size, name in itertools.product(arguments.texts, names):
            lists = [[texts[(n + i) % len(texts)] for i in range(size)] for n in range(len(texts))]
            bodies = ", ".join(json.dumps(json.dumps(asking(name, each)[1])) for each in lists)
            script_of(home, size, name).write_text(LUA.format(bodies=bodies), "utf-8")
        make = ours_without_ray if arguments.local else ours
        servers = [stack.enter_context(make(version, arguments))]
        engine = httpx.get(f"{servers[0].url}/health").json()["engine"]
        if arguments.checkout:
            other_commit = without_ray("checkout", arguments.checkout, version, engine, arguments)
            servers.append(stack.enter_context(other_commit))
        servers += [
            stack.enter_context(other(name, python, version, engine, arguments))
            for name, python in peers
        ]
        for _ in range(arguments.rounds):
            ceiling = ceiling_of(version, engine, device_of(arguments))
            print(f"{engine}: {ceiling:,.0f} texts a (CPU) second by itself", flush=True)
            asked = itertools.product(arguments.texts, arguments.concurrency, servers)
            for size, concurrency, server in asked:
                script = script_of(home, size, server.name)
                rows.append(measure(server, concurrency, size, arguments, script, ceiling))
                print(asdict(rows[-1]), file=sys.stderr, flush=True)
                if rows[-1].failed and (log := log_of(server.name)).exists():
                    print(log.read_text(errors="replace")[-1000:], file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)
    return engine, rows


def asking(name: str, texts: list[str]) -> tuple[str, dict[str, Any]]:
    """Path and body of a request for so many texts, as a server wants them."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    match name:
        case "infinity":
            return "/classify", {"model": "m", "input": texts}
        case "mlserver":
            as_text = {"parameters": {"content_type": "str"}}
            return "/v2/models/m/infer", {"inputs": [tensor | as_text]}
        case "triton":
            return "/v2/models/m/infer", {"inputs": [tensor]}
        case "bentoml":  # batches only requests of lists
            return "/predict", {"inputs": texts}
    return "/predict", {"inputs": texts if len(texts) > 1 else texts[0]}


def script_of(home: str, size: int, name: str) -> Path:
    """What wrk sends to a server: so many texts a request."""
    return Path(home) / f"{name}-{size}.lua"


@contextlib.contextmanager
def ours(version: ModelVersion, arguments: Any) -> Iterator[Server]:
    """Our endpoint on a local cluster, as `winnow deploy` makes it."""
    spec = ServeSpec.model_validate(
        {
            "route": "/bench",
            "engine": arguments.engine,
            "accelerators": arguments.accelerators,
            "batching": {"max_batch_size": arguments.batch},
            "fronts": arguments.fronts if arguments.fronts == "auto" else int(arguments.fronts),
        }
    )
    with session.connect() as cluster:
        from cluster import discovery
        from serve.deploy import deployment

        endpoint = deployment.deploy(
            version,
            spec,
            discovery.discover(),
            port=cluster.serve_port,
            find_version=lambda *_: version,
        )
        running = local.running()
        assert running is not None
        yield Server("winnow", endpoint.url, running.pid)


def ours_without_ray(
    version: ModelVersion, arguments: Any
) -> contextlib.AbstractContextManager[Server]:
    """Our endpoint as `winnow serve` makes it."""
    return without_ray("winnow", ROOT, version, arguments.engine, arguments)


@contextlib.contextmanager
def without_ray(
    name: str, sources: Path, version: ModelVersion, engine: str, arguments: Any
) -> Iterator[Server]:
    """The endpoint that `winnow serve` of a checkout makes."""
    port = LOCAL_PORT if sources == ROOT else LOCAL_PORT - 1
    words = [sys.executable, "-m", "orchestrator", "serve", version.name, "--version", version.id]
    words += ["--storage", str(arguments.storage.resolve()), "--engine", engine]
    words += ["--port", str(port), "--batch", str(arguments.batch)]
    words += ["--gpu"] if device_of(arguments) == "cuda" else []
    words += [] if arguments.fronts == "auto" else ["--fronts", arguments.fronts]
    environment = {**os.environ, "PYTHONPATH": str(sources.resolve())}
    with process_of(name, words, environment, port) as server:
        yield server


@contextlib.contextmanager
def other(
    name: str, python: str, version: ModelVersion, engine: str, arguments: Any
) -> Iterator[Server]:
    """A peer in a process of its own."""
    if name not in PEERS:
        raise SystemExit(f"--peer {name} is not among {', '.join(PEERS)}")
    port = LOCAL_PORT + 1 + PEERS.index(name)
    environment = {
        **os.environ,
        "PEER_MODEL": version.path,
        "PEER_EXPORTS": version.exports,
        "PEER_LABELS": ",".join(version.labels),
        "PEER_MAX_LENGTH": str(version.max_length),
        "PEER_ENGINE": engine,
        "PEER_DEVICE": device_of(arguments),
        "PEER_BATCH": str(arguments.batch),
        "OMP_NUM_THREADS": "1",
    }
    words = [python, f"benchmarks/peers/{name}_peer.py", str(port)]
    with process_of(name, words, environment, port) as server:
        yield server


@contextlib.contextmanager
def process_of(
    name: str, words: list[str], environment: dict[str, str], port: int
) -> Iterator[Server]:
    """A server in a process that ends with the `with`."""
    log = log_of(name)
    with log.open("wb") as output:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        server = Server(name, f"http://127.0.0.1:{port}", process.pid)
        wait_for(server, process, log)
        yield server
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if is_up(process) else []
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        process.terminate()
        process.wait(20)


def log_of(name: str) -> Path:
    """What a server in a process of ours prints."""
    return Path(os.environ["WINNOW_HOME"]) / f"{name}.log"


def is_up(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has not ended."""
    return process.poll() is None


def wait_for(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until it answers."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and is_up(process):
        with contextlib.suppress(httpx.HTTPError):
            path, body = asking(server.name, ["a fine film"])
            answer = httpx.post(f"{server.url}{path}", json=body, timeout=5)
            if answer.status_code == httpx.codes.OK:
                return
        time.sleep(0.5)
    raise SystemExit(f"{server.name} does not answer: {log.read_text(errors='replace')[-2000:]}")


def device_of(arguments: Any) -> str:
    """Where the model runs."""
    return "cpu" if arguments.accelerators.startswith("cpu") else "cuda"


def ceiling_of(version: ModelVersion, engine: str, device: str) -> float:
    """Texts per CPU second of the engine alone: sorted, in its best batches, as rows.

    Per second on a GPU.
    """
    clock = "process_time" if device == "cpu" else "perf_counter"
    code = (
        "import json, sys, time; from pathlib import Path;"
        "from serve.engines import engine_factory, selection;"
        "from serve.batching.policy import Limits; from serve.engines.startup import warm_up;"
        "from serve.batching.rows import Tokenizer;"
        "from serve.tools.load_generator import sentences;"
        f"p, l, d = Path({version.path!r}), {version.max_length}, {device!r}; t = Tokenizer(p, l);"
        "g = engine_factory.read_eval_sample(p, 'softmax');"
        f"f = engine_factory.EngineFactory(p, Path({version.exports!r}), t, d, 1);"
        f"m = f.make({engine!r}, g);"
        "d == 'cpu' and warm_up(m, Limits(batch_tokens=selection.PACKED_TOKENS), g, l);"
        f"many = {4 if device == 'cpu' else 16};"
        "rows = sorted(t.rows([(s,) for s in sentences()]) * many, key=len); best = 0\n"
        f"for budget in {CEILING_TOKENS[device]}:\n"
        "  sizes = [max(1, budget // len(r)) for r in rows]; batches = []; at = 0\n"
        "  while at < len(rows):\n"
        "    size = sizes[min(at + sizes[at], len(rows)) - 1]\n"
        "    batches.append(rows[at : at + size]); at += size\n"
        "  [m.run(b) for b in batches]\n"
        f"  c, w, n = time.{clock}(), time.perf_counter(), 0\n"
        "  while time.perf_counter() - w < 3:\n"
        "    for b in batches: m.run(b); n += len(b)\n"
        f"  best = max(best, n / (time.{clock}() - c))\n"
        "print(best); del m"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the engine by itself failed: {done.stderr.decode()[-2000:]}")
    return float(done.stdout.decode().split()[-1])


def measure(
    server: Server,
    concurrency: int,
    size: int,
    arguments: Any,
    script: Path,
    ceiling: float,
) -> Row:
    """Ask one server for some seconds."""
    path, _ = asking(server.name, [""])
    url, is_gpu = f"{server.url}{path}", device_of(arguments) == "cuda"
    words = [
        "wrk",
        f"-t{min(8, concurrency) if is_gpu else 1}",
        f"-c{concurrency}",
        f"-d{arguments.seconds:g}s",
        "--timeout",
        "30s",
        "-s",
        str(script),
        url,
    ]
    subprocess.run([*words[:3], "-d1s", *words[4:]], capture_output=True, check=True)
    time.sleep(PAUSE_S)  # a batch whose clients left is run to its end
    before = cpu_s(server.pid)
    done = subprocess.run(words, capture_output=True, check=True)
    spent: dict[str, float] = {}
    for pid, (name, seconds) in cpu_s(server.pid).items():
        spent[name] = spent.get(name, 0.0) + seconds - before.get(pid, ("", 0.0))[1]
    found = re.search(rb"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", done.stdout)
    assert found, done.stdout
    requests, duration_us, p50_us, p99_us, failed = (int(part) for part in found.groups())
    return Row(
        server.name,
        concurrency,
        size * requests / duration_us * 1e6,
        size,
        p50_us / 1000,
        p99_us / 1000,
        1e6 * sum(spent.values()) / max(1, requests),
        failed,
        {name: round(1e6 * s / duration_us, 2) for name, s in sorted(spent.items())},
        ceiling,
    )


def cpu_s(pid: int) -> dict[int, tuple[str, float]]:
    """What a process and all below it are, and their CPU seconds so far.

    By their numbers: Ray's processes change their names with what they do.
    """
    found: dict[int, tuple[str, float]] = {}
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            is_front = "serve.frontends.worker" in process.cmdline()
            name = "front" if is_front else process.name()
            found[process.pid] = name, times.user + times.system
    return found


def show(rows: Sequence[Row], *, is_gpu: bool) -> None:
    """Print medians over the rounds."""
    titles = ("server", "texts", "at once", "texts/s", "p50 ms", "p99 ms", "CPU us")
    print(*titles, "of the engine", "failed", "CPU us beside it", sep="\t")
    every = dict.fromkeys((row.texts, row.concurrency, row.server) for row in rows)
    for size, concurrency, name in every:
        own = [r for r in rows if (r.texts, r.concurrency, r.server) == (size, concurrency, name)]

        def median(field: str, own: list[Any] = own) -> float:
            return float(statistics.median(getattr(row, field) for row in own))

        share = statistics.median(row.of_engine(is_gpu=is_gpu) for row in own)
        beside = "" if is_gpu else f"{median('beside_us'):.0f}"
        print(
            f"{name}\t{size}\t{concurrency}\t{median('texts_per_s'):.0f}\t{median('p50_ms'):.2f}"
            f"\t{median('p99_ms'):.1f}\t{median('cpu_us'):.0f}\t{share:.0%}"
            f"\t{sum(row.failed for row in own)}\t{beside}"
        )


if __name__ == "__main__":
    sys.exit(main())
