"""Starts and stops the local Ray cluster, which listens on loopback and requires a token."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import psutil

from cluster import catalogue, ingress
from cluster.access import LOOPBACK
from jobs.errors import ClusterError
from jobs.spec.quantities import AcceleratorRequest, parse_accelerators
from jobs.storage import files
from raywinnow import paths

START_TIMEOUT_S = 90.0
"""How long the head and the simulated nodes may take to start."""
STOP_TIMEOUT_S = 10.0
"""How long processes may take to stop after SIGTERM, before SIGKILL."""
POLL_S = 0.05
IDLE_WORKER_S = 30
"""How long an idle Ray worker process is kept for the next task."""
LOG_BYTES = 32 * 2**20
"""Size at which Ray rotates a log file; two older files are kept."""
SERVE_PORT, DASHBOARD_PORT = 8000, 8265
"""Ray's default ports, used when they are free."""
SHORT_TEMPORARY = "/tmp"
"""Folder of HAProxy's files; the path of a Unix socket may have at most 97 characters."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running local cluster."""

    pid: int
    created: float
    """Start time of the process, which distinguishes it from a later process with the same pid."""
    address: str
    dashboard_port: int
    serve_port: int
    simulated: tuple[str, ...] = ()
    """Its simulated nodes, each as `SKU:count`."""
    ingress: str = ""
    """Folder of HAProxy's files."""

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's dashboard and job API."""
        return f"http://127.0.0.1:{self.dashboard_port}"


READ_ON_IMPORT = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""What Ray reads once, when it is imported: it needs tokens, and listens on loopback only, which
Ray offers under the name of its Windows and macOS support."""


def environment() -> dict[str, str]:
    """Returns the variables to set before importing ray, to start or join the local cluster."""
    return {
        **READ_ON_IMPORT,
        "RAY_AUTH_TOKEN_PATH": str(_file("token")),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's 15 slows replicas too; training lowers its own priority
        # an idle worker uses 1 % of a core, so all are ended
        "RAY_num_workers_soft_limit": "0",
        "RAY_idle_worker_killing_time_threshold_ms": str(1000 * IDLE_WORKER_S),
        "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES),
        "RAY_ROTATION_BACKUP_COUNT": "2",
        **ingress.SWITCHES,
    }


def running() -> LocalCluster | None:
    """Returns the local cluster, or None if it is not up."""
    try:
        values = json.loads(_file("cluster.json").read_text(encoding="utf-8"))
        cluster = LocalCluster(**{**values, "simulated": tuple(values["simulated"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return cluster if _process(cluster) else None


def start(
    simulated: Sequence[AcceleratorRequest] | None = None,
) -> tuple[LocalCluster, bool]:
    """Start the local cluster unless it is up; returns it and whether it was up already.

    Raises:
        ClusterError: if a cluster with other simulated nodes is up, or the start fails.
    """
    with _exclusive():
        current = running()
        if current is None:
            return _start(simulated or ()), False
        if simulated is None or sorted(current.simulated) == sorted(names(simulated)):
            return current, True
    raise ClusterError(
        f"a local cluster with {_listed(current.simulated)} is up, not one with"
        f" {_listed(names(simulated))}; stop it with `winnow down`"
    )


def at(address: str) -> LocalCluster | None:
    """Returns the local cluster if it is up and `address` is its head or dashboard, else None."""
    cluster = running()
    place = address.partition("://")[2] or address
    host, _, port = place.rstrip("/").rpartition(":")
    own = cluster and (cluster.address.rpartition(":")[2], str(cluster.dashboard_port))
    return cluster if own and host in LOOPBACK and port in own else None


def _start(simulated: Sequence[AcceleratorRequest]) -> LocalCluster:
    _file("cluster.json").unlink(missing_ok=True)
    _write_token()
    nodes = [parse_accelerators(name) for name in names(simulated)]
    dashboard_port, serve_port = _free_port(DASHBOARD_PORT), _free_port(SERVE_PORT)
    log = files.home() / "cluster.log"
    folder = Path(tempfile.mkdtemp(prefix="winnow-", dir=SHORT_TEMPORARY))
    process = _start_daemon(nodes, dashboard_port, folder, log)
    try:
        address = _wait_for_address(process, log)
    except BaseException:  # an interrupted start must leave nothing behind
        process.terminate()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    cluster = LocalCluster(
        pid=process.pid,
        created=psutil.Process(process.pid).create_time(),
        address=address,
        dashboard_port=dashboard_port,
        serve_port=serve_port,
        simulated=names(simulated),
        ingress=str(folder),
    )
    files.write_atomically(_file("cluster.json"), json.dumps(asdict(cluster)).encode())
    return cluster


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    """Hold the lock under which processes start or stop the local cluster."""
    files.home().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(files.home() / "cluster.lock"):
        yield


def names(simulated: Sequence[AcceleratorRequest]) -> tuple[str, ...]:
    """Returns each simulated node under the catalogue's name, such as `A100-80GB:1`."""
    nodes = [AcceleratorRequest(catalogue.find(r.name).name, r.count) for r in simulated]
    return tuple(str(node) for node in nodes)


def _listed(nodes: Sequence[str]) -> str:
    return f"the simulated nodes {', '.join(nodes)}" if nodes else "no simulated nodes"


def stop() -> bool:
    """Stop the local cluster and all its processes; returns False if none was up."""
    with _exclusive():
        return _stop()


def _stop() -> bool:
    cluster = running()
    process = _process(cluster) if cluster else None
    if process is None:
        return False
    family = [process, *process.children(recursive=True)]
    _signal(process, signal.SIGTERM)
    for proxy in _proxies(cluster):  # Ray Serve does not stop them, and they hold the port
        _signal(proxy, signal.SIGTERM)
    for survivor in _left_after(family, STOP_TIMEOUT_S):
        _signal(survivor, signal.SIGKILL)
    if cluster and cluster.ingress:
        shutil.rmtree(cluster.ingress, ignore_errors=True)
    _file("cluster.json").unlink(missing_ok=True)
    return True


def _start_daemon(
    nodes: Sequence[AcceleratorRequest], dashboard_port: int, folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "cluster.local_daemon",
        "--address-file",
        str(_file("address")),
    ]
    command += ["--dashboard-port", str(dashboard_port)]
    command += [option for node in nodes for option in ("--simulate", str(node))]
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            command,
            env={
                **paths.environment(),
                **environment(),
                **ingress.environment(folder, _free_port),
                # of the keeper, Ray's processes and the jobs that are submitted to it
                "PYTHONSAFEPATH": "1",
                "PATH": _path_with_this_python(),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _proxies(cluster: LocalCluster | None) -> list[psutil.Process]:
    """Returns the HAProxy processes of a cluster, by their configuration file, not their parent."""
    own = cluster.ingress if cluster else ""
    if not own:
        return []
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if any(word.startswith(own) for word in p.info["cmdline"] or ())]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself at any moment
        process.send_signal(number)


def _left_after(family: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Returns the processes that still run after `timeout_s`.

    `psutil.wait_procs` is not used, because it can fail for a process that has ended.
    """
    deadline = time.monotonic() + timeout_s
    while (left := [each for each in family if _runs(each)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if _file("address").exists():
            return _file("address").read_text(encoding="utf-8")
        if process.poll() is not None:
            break
        time.sleep(0.1)
    last = log.read_text(encoding="utf-8", errors="replace").strip().rsplit("\n", 1)[-1]
    raise ClusterError(f"the local Ray cluster did not start ({last}); see {log}")


def _process(cluster: LocalCluster) -> psutil.Process | None:
    try:
        process = psutil.Process(cluster.pid)
        is_ours = abs(process.create_time() - cluster.created) < 1
        return process if is_ours and _runs(process) else None
    except psutil.NoSuchProcess:
        return None


def _path_with_this_python() -> str:
    """Returns a PATH on which `python`, the entry point of submitted jobs, is this interpreter."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def _write_token() -> None:
    _file("address").unlink(missing_ok=True)
    if not _file("token").exists():
        descriptor = os.open(_file("token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(secrets.token_hex(32))


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ClusterError("no free port on 127.0.0.1")


def _file(name: str) -> Path:
    """A file of the local cluster: `cluster.json`, `address` or `token`."""
    return files.home() / name
