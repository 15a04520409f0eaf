"""What a stranger gets from each port of a cluster, from another network and without a token.

    sudo python benchmarks/outsider.py [--firewall] [--out FILE]

Two network namespaces on one machine, joined by a cable: in one a head with an endpoint, in the
other a client without a token. Every port on which the head listens for others is asked as its
own clients ask: HTTP, gRPC, a driver, a job. `--firewall` does so behind `firewall.nft` too.
Written: port, what listens, for whom, and what the stranger got. Needs root and Linux; nothing
outside the two namespaces is touched.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import faults, partition  # noqa: E402
from cluster import ingress  # noqa: E402

RULES = ROOT / "infra/firewall.nft"
PORTS = {
    "port": 6379,
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-grpc-port": 6383,
    "dashboard-agent-listen-port": 6384,
    "metrics-export-port": 6385,
    "ray-client-server-port": 6386,
    "dashboard-port": 8265,
    "min-worker-port": 10002,
    "max-worker-port": 19999,
}
"""As in `firewall.nft`."""
READY_S = 60.0

LISTENING = """
import json
from cluster import exposure
found = [(each.role.name, each.role.audience, each.address, each.port)
         for each in exposure.gather().listening if not each.is_local]
print(json.dumps(found))
"""


def main() -> int:
    """Set up, ask every port, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firewall", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    mark = f"wo{os.getpid() % 10_000}"
    with tempfile.TemporaryDirectory(prefix="wo-") as name, partition.cabled(mark):
        folder = Path(name)
        with head(mark, folder) as environment:
            result: dict[str, Any] = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "ports": ask_all(mark, environment),
                "clients": ask_as_clients(mark, folder, environment),
            }
            if arguments.firewall:
                close(mark, folder)
                result["behind_firewall"] = ask_all(mark, environment)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0 if all(is_as_wanted(each) for each in result["clients"]) else 1


@contextlib.contextmanager
def head(mark: str, folder: Path) -> Iterator[dict[str, str]]:
    """A head with an endpoint; the environment of those who may use it."""
    environment = {
        **partition.owner(folder),
        "HOME": str(folder / "nobody"),
        "ENDPOINT_TOKENS": secrets.token_hex(16),
        **ingress.environment(folder / "ingress", lambda port: port),
    }
    command = [partition.RAY, "start", "--head", "--block", "--num-cpus=3"]
    command += [f"--node-ip-address={partition.HEAD}", "--dashboard-host=0.0.0.0"]
    command += [f"--{name}={port}" for name, port in PORTS.items()]
    process = partition.start(
        partition.inside(mark, "a", *command), environment, folder / "head.log"
    )
    try:
        deploy(mark, folder, environment)
        yield environment
    finally:
        partition.end(process)


def deploy(mark: str, folder: Path, environment: dict[str, str]) -> None:
    """Train a little and put the model behind an endpoint that asks for tokens."""
    faults.rows(folder)
    faults.model(folder / "model")
    path = faults.job(folder, "served", 1.0, "torch-fp32")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    del values["sweep"]
    values["resources"] = {"any_of": [{"accelerators": "cpu:1"}]}
    values["train"]["optimizer"] = {"lr": 0.001}
    values["serve"]["auth"] = {"tokens_from": "ENDPOINT_TOKENS"}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    run = [sys.executable, "-m", "orchestrator", "run", str(path)]
    run += ["--address", f"{partition.HEAD}:{PORTS['port']}"]
    deadline = time.monotonic() + READY_S
    while True:
        done = subprocess.run(
            partition.inside(mark, "a", *run), env=environment, capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise SystemExit((done.stdout + done.stderr).decode()[-3000:])
        time.sleep(2)  # the head is not up yet


PROBE = """
import http.client, json, socket, sys
import grpc

METHODS = (
    "NodeInfoGcsService/GetAllNodeInfo", "InternalKVGcsService/InternalKVKeys",
    "JobInfoGcsService/AddJob", "NodeManagerService/GetNodeStats",
    "NodeManagerService/RequestWorkerLease", "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats", "CoreWorkerService/PushTask",
    "ReporterService/GetTraceback", "LogService/ListLogs", "RayletDriver/ClusterInfo",
)
PATHS = (
    ("GET", "/api/jobs/"), ("GET", "/nodes?view=summary"), ("GET", "/api/serve/applications/"),
    ("GET", "/metrics"), ("GET", "/v2/models/reviews"), ("POST", "/predict"),
    ("POST", "/get_or_create_runtime_env"), ("POST", "/api/job_agent/jobs/"),
)

def of_http(host, port):
    for method, path in PATHS:
        connection = http.client.HTTPConnection(host, port, timeout=3)
        try:
            connection.request(method, path, b"" if method == "POST" else None)
            yield path, str(connection.getresponse().status)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

def of_grpc(host, port):
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for method in METHODS:
            try:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=3)
                yield method, "OK"
            except grpc.RpcError as error:
                yield method, error.code().name
                if error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    return

def ask(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError as error:
        return {"tcp": type(error).__name__}
    return {"http": dict(of_http(host, port)), "grpc": dict(of_grpc(host, port))}

print(json.dumps([ask(sys.argv[1], int(port)) for port in sys.argv[2:]]))
"""


def ask_all(mark: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Every port of the head that is not on loopback, as a stranger sees it."""
    listing = [sys.executable, "-c", LISTENING]
    found = json.loads(output(partition.inside(mark, "a", *listing), environment))
    ports = sorted({port for *_, port in found})
    asking = [sys.executable, "-c", PROBE, partition.HEAD, *map(str, ports)]
    nobody = {name: value for name, value in environment.items() if "AUTH" not in name}
    answers = dict(
        zip(ports, json.loads(output(partition.inside(mark, "b", *asking), nobody)), strict=True)
    )
    return [
        {"port": port, "role": role, "for": audience, "verdict": verdict(answers[port])}
        for role, audience, _, port in sorted(found, key=lambda each: each[-1])
    ]


NOTHING = frozenset(("UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "404", "405", "400"))
"""Answers of a port that does not know what was asked."""
REFUSALS = frozenset(("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403"))
"""Answers to whoever brings no token. Anything else tells something."""


def verdict(answer: dict[str, Any]) -> str:
    """In a few words."""
    if "tcp" in answer:
        return f"no connection ({answer['tcp']})"
    told = {**answer["http"], **answer["grpc"]}
    given = [what for what, code in told.items() if code not in NOTHING | REFUSALS]
    if given:
        return f"answers {', '.join(given)}"
    refused = sorted({code for code in told.values() if code in REFUSALS})
    return f"refuses ({', '.join(refused)})" if refused else "knows none of these questions"


CLIENTS = {
    "GCS": (
        "from ray._raylet import GcsClient;"
        "print(len(GcsClient(address='{head}:6379').get_all_node_info(timeout=10)))"
    ),
    "job": (
        "from ray.job_submission import JobSubmissionClient;"
        "print(JobSubmissionClient('http://{head}:8265').submit_job(entrypoint='touch {trace}'))"
    ),
    "ray://": (
        "import pathlib, ray; ray.init('ray://{head}:6386');"
        "print(ray.get(ray.remote(lambda: pathlib.Path('{trace}').touch()).remote()))"
    ),
}
"""What its own clients do."""


def ask_as_clients(mark: str, folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Each kind of client without a token, with a wrong one, and with the right one."""
    wrong = folder / "wrong"
    wrong.write_text(secrets.token_hex(32), encoding="utf-8")
    by_token = {
        "none": {**partition.stranger(), "HOME": environment["HOME"]},
        "wrong": {**environment, "RAY_AUTH_TOKEN_PATH": str(wrong)},
        "right": environment,
    }
    found = []
    for name, code in CLIENTS.items():
        for token, own in by_token.items():
            trace = folder / f"{name.strip(':/')}-{token}"
            words = [sys.executable, "-c", code.format(head=partition.HEAD, trace=trace)]
            done = subprocess.run(
                partition.inside(mark, "b", "timeout", "60", *words),
                env=own,
                capture_output=True,
                text=True,
                check=False,
            )
            time.sleep(3 if done.returncode == 0 else 0)  # a job begins after it was taken
            said = [line for line in done.stderr.splitlines() if line.strip()]
            found.append(
                {
                    "client": name,
                    "token": token,
                    "code": done.returncode,
                    "left_a_trace": trace.exists(),
                    "said": re.sub(r"\s+", " ", said[-1])[:160] if said else "",
                }
            )
    return found


def is_as_wanted(found: dict[str, Any]) -> bool:
    """Whether the right token lets in, and nothing else does."""
    is_in = found["code"] == 0
    return bool(is_in == (found["token"] == "right") and (is_in or not found["left_a_trace"]))


def close(mark: str, folder: Path) -> None:
    """Put the firewall up in the head's namespace, with the cable's networks."""
    rules = RULES.read_text(encoding="utf-8")
    own = re.sub(r"define nodes = .*", f"define nodes = {{ {partition.HEAD} }}", rules)
    path = folder / "firewall.nft"
    path.write_text(own, encoding="utf-8")
    subprocess.run(partition.inside(mark, "a", "nft", "-f", str(path)), check=True)


def output(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints; what it complains about is shown."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
