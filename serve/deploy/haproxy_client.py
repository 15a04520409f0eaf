"""Reads and writes the routes in every node's HAProxy. Thin shell over Ray."""

import contextlib
import csv
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.exceptions

from cluster import ingress, labels
from jobs.errors import DeployError
from jobs.storage import files
from serve.deploy import routing
from serve.deploy.rollout import Counts
from serve.deploy.routing import Route

TIMEOUT_S = 30.0
"""Longest time for a node to change its maps."""
SOCKET_TIMEOUT_S = 5.0
ATTEMPTS, PAUSE_S = 20, 0.5
"""Most attempts to update the running HAProxy, and the pause between them."""
Process = tuple[str, int]
"""Socket and process id of a HAProxy."""
Totals = Mapping[Process, Mapping[str, tuple[int, int]]]
"""Answers and errors (5xx) of every backend, by process."""
MAPS = (ingress.STABLE, ingress.CANARY, ingress.WEIGHTS, ingress.RATES, ingress.MODELS)


def read() -> dict[str, Route] | None:
    """Returns the routes of the head node's HAProxy; None if it has no HAProxy with our rules."""
    texts = _on_nodes(_read, head_only=True)[0]
    return None if texts is None else routing.parse(*texts)


def write(changes: Mapping[str, Route | None]) -> None:
    """Changes routes on every node, in the map files and in the running HAProxy.

    Args:
        changes: New routes by their public path; None removes a route.

    Raises:
        DeployError: if a node's HAProxy does not respond.
    """
    merged = {**(read() or {}), **changes}
    routes = {name: route for name, route in merged.items() if route}
    _on_nodes(_write, [routing.text_of(table) for table in routing.maps(routes)])


def counts(application: str) -> Counts:
    """Returns an application's answers and its errors (5xx), as the head node's HAProxy counts."""
    return by_application(_on_nodes(_totals, head_only=True)[0]).get(application, {})


def observe() -> tuple[dict[str, Route] | None, dict[str, Counts]]:
    """Returns what `read` returns, and what `counts` returns by application, in one question."""
    texts, totals = _on_nodes(_observe, head_only=True)[0]
    return None if texts is None else routing.parse(*texts), by_application(totals)


def by_application(totals: Totals) -> dict[str, Counts]:
    """Returns answers and errors by application and process; `totals` has them by backend.

    Ray Serve names a backend by its protocol and its application, such as `http-reviews`.
    """
    found: dict[str, dict[Process, tuple[int, int]]] = {}
    for process, backends in totals.items():
        for backend, (answers, errors) in backends.items():
            name = backend.partition("-")[2] or backend
            known = found.setdefault(name, {}).get(process, (0, 0))
            found[name][process] = known[0] + answers, known[1] + errors
    return dict(found)


def _on_nodes(work: object, *arguments: object, head_only: bool = False) -> list[Any]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if head_only:
        nodes = [node for node in nodes if labels.HEAD_RESOURCE in node["Resources"]]
    task = ray.remote(num_cpus=0)(work)
    results = [
        task.options(label_selector={labels.NODE_ID: node["NodeID"]}).remote(*arguments)
        for node in nodes
    ]
    try:
        return list(ray.get(results, timeout=TIMEOUT_S))
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise DeployError(f"the routes in a node's HAProxy are unavailable: {reason}") from None


def _folder() -> str:
    return os.environ.get(ingress.FOLDER, "")


def _read() -> tuple[str, ...] | None:
    if not _folder():
        return None
    folder = Path(_folder())
    return tuple((folder / name).read_text(encoding="utf-8") for name in MAPS)


def _write(tables: list[str]) -> None:
    """Writes the map files, which the next HAProxy reads, and then updates the running HAProxy."""
    folder = Path(_folder())
    for name, text in zip(MAPS, tables, strict=True):
        files.write_atomically(folder / name, text.encode())
    problem = OSError(f"the new HAProxy process does not answer in {folder}")
    for _ in range(ATTEMPTS):
        try:
            updated = {path: _process_id(path) for path in _sockets(folder)}
            for path in updated:
                _commit(path, folder, tables)
            # a HAProxy that is starting may have read the files before they changed
            if not any(_is_replaced(pid, path.parent) for path, pid in updated.items()):
                return
        except OSError as error:  # Ray Serve is replacing HAProxy at this moment
            problem = error
        time.sleep(PAUSE_S)
    raise problem


def _process_id(socket_path: Path) -> int:
    return _process_in(_command(socket_path, "show info"), socket_path)


def _process_in(about: str, socket_path: Path) -> int:
    """Returns the process id in the answer to `show info`."""
    match = re.search(r"^Pid: (\d+)$", about, re.MULTILINE)
    if not match:
        raise OSError(f"no HAProxy answers at {socket_path}")
    return int(match[1])


def _is_replaced(pid: int, folder: Path) -> bool:
    """Returns True if a HAProxy that is newer than process `pid` has started with its files."""
    try:
        begin = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return True
    configuration = str(folder / ingress.CONFIGURATION)
    return any(
        process.info["create_time"] > begin and configuration in process.info["cmdline"]
        for process in psutil.process_iter(["create_time", "cmdline"])
        if process.info["cmdline"]
    )


def _commit(socket_path: Path, folder: Path, tables: list[str]) -> None:
    """Replaces the running HAProxy's maps, each one atomically."""
    # a weight must never exist without its canary's path: added after it, removed before it
    order = (3, 0, 4, 1, 2) if tables[2] else (3, 2, 1, 0, 4)
    for index in order:
        path = folder / MAPS[index]
        version = _command(socket_path, f"prepare map {path}").rsplit(":", 1)[-1].strip()
        if not version.isdigit() and MAPS[index] == ingress.MODELS:
            continue  # this map exists only with the rules for gRPC
        if not version.isdigit():
            raise OSError(f"HAProxy refused a new version of {path.name}: {version}")
        if tables[index]:
            _command(socket_path, f"add map @{version} {path} <<\n{tables[index]}\n")
        _command(socket_path, f"commit map @{version} {path}")


def _sockets(folder: Path) -> list[Path]:
    """Returns the sockets of all running HAProxys; Ray Serve gives each node its own folder."""
    running = []
    for path in folder.rglob(ingress.SOCKET):
        with contextlib.suppress(OSError):  # an ended HAProxy leaves its socket file
            _command(path, "show version")
            running.append(path)
    return running


def _observe() -> tuple[tuple[str, ...] | None, Totals]:
    return _read(), _totals() if _folder() else {}


def _totals() -> Totals:
    """Returns answers and errors (5xx) of this node's HAProxys, by process and backend."""
    totals = dict[Process, dict[str, tuple[int, int]]]()
    for socket_path in _sockets(Path(_folder())):
        # in one connection, because Ray Serve may replace the process between two
        about, _, table = _command(socket_path, "show info;show stat").partition("# pxname")
        backends = totals.setdefault((str(socket_path), _process_in(about, socket_path)), {})
        for row in csv.DictReader(f"pxname{table}".splitlines()):
            if row["svname"] == "BACKEND":
                classes = [int(row.get(f"hrsp_{kind}xx") or 0) for kind in range(1, 6)]
                backends[row["pxname"]] = sum(classes), classes[-1]
    return totals


def _command(socket_path: Path, command: str) -> str:
    """Sends a command to a HAProxy and returns its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SOCKET_TIMEOUT_S)
        connection.connect(str(socket_path))
        connection.sendall(f"{command}\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer.decode()
