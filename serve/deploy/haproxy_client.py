"""Tells every node's HAProxy which version answers on which route. Thin shell over Ray."""

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
from serve.deploy import routing
from serve.deploy.routing import Route

TIMEOUT_S = 30.0
"""How long a node may take to change its maps."""
SOCKET_TIMEOUT_S = 5.0
ATTEMPTS, PAUSE_S = 20, 0.5
"""How often a running HAProxy is told, and how long between."""
MAPS = (ingress.STABLE, ingress.CANARY, ingress.WEIGHTS, ingress.RATES, ingress.MODELS)


def read() -> dict[str, Route] | None:
    """The routes as the head's HAProxy has them; None where there is none with our rules."""
    texts = _on_nodes(_read, head_only=True)[0]
    return None if texts is None else routing.parse(*texts)


def write(changes: Mapping[str, Route | None]) -> None:
    """Change routes on every node, on disk and in the running HAProxy; None takes one away."""
    found = {**(read() or {}), **changes}
    kept = {name: route for name, route in found.items() if route}
    _on_nodes(_write, [routing.text_of(table) for table in routing.maps(kept)])


def counts(application: str) -> tuple[int, int]:
    """Requests of an application that the head's HAProxy passed on, and those that failed (5xx)."""
    requests, failed = _on_nodes(_counts, application, head_only=True)[0]
    return requests, failed


def _on_nodes(work: object, *arguments: object, head_only: bool = False) -> list[Any]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if head_only:
        nodes = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
    task = ray.remote(num_cpus=0)(work)
    asked = [
        task.options(label_selector={labels.NODE_ID: node["NodeID"]}).remote(*arguments)
        for node in nodes
    ]
    try:
        return list(ray.get(asked, timeout=TIMEOUT_S))
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise DeployError(f"a node's HAProxy does not answer about its routes: {reason}") from None


def _folder() -> str:
    return os.environ.get(ingress.FOLDER, "")


def _read() -> tuple[str, ...] | None:
    if not _folder():
        return None
    folder = Path(_folder())
    return tuple((folder / name).read_text(encoding="utf-8") for name in MAPS)


def _write(tables: list[str]) -> None:
    """Files first, which the next HAProxy reads; then the running one, each map at once."""
    folder = Path(_folder())
    for name, text in zip(MAPS, tables, strict=True):
        partial = folder / f"{name}.{os.getpid()}.new"  # nodes of one machine share the folder
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    problem = OSError(f"the HAProxy that replaces another does not answer in {folder}")
    for _ in range(ATTEMPTS):
        try:
            told = {listening: _process_id(listening) for listening in _sockets(folder)}
            for listening in told:
                _commit(listening, folder, tables)
            # one that is about to answer may have read the files before they changed
            if not any(_is_replaced(known, at.parent) for at, known in told.items()):
                return
        except OSError as error:  # Ray Serve is just replacing it by a new one
            problem = error
        time.sleep(PAUSE_S)
    raise problem


def _process_id(listening: Path) -> int:
    found = re.search(r"^Pid: (\d+)$", _say(listening, "show info"), re.MULTILINE)
    if not found:
        raise OSError(f"no HAProxy answers at {listening}")
    return int(found[1])


def _is_replaced(told: int, folder: Path) -> bool:
    """Whether a HAProxy with its files in a folder was started after the one that was told."""
    try:
        begin = psutil.Process(told).create_time()
    except psutil.NoSuchProcess:
        return True
    configuration = str(folder / ingress.CONFIGURATION)
    return any(
        process.info["create_time"] > begin and configuration in process.info["cmdline"]
        for process in psutil.process_iter(["create_time", "cmdline"])
        if process.info["cmdline"]
    )


def _commit(listening: Path, folder: Path, tables: list[str]) -> None:
    # a canary's path is there before its weight, and its weight is gone before its path
    order = (3, 0, 4, 1, 2) if tables[2] else (3, 2, 1, 0, 4)
    for index in order:
        path = folder / MAPS[index]
        version = _say(listening, f"prepare map {path}").rsplit(":", 1)[-1].strip()
        if not version.isdigit() and MAPS[index] == ingress.MODELS:
            continue  # read by the rules for gRPC alone, which is not always there
        if not version.isdigit():
            raise OSError(f"HAProxy did not take a new version of {path.name}: {version}")
        if tables[index]:
            _say(listening, f"add map @{version} {path} <<\n{tables[index]}\n")
        _say(listening, f"commit map @{version} {path}")


def _sockets(folder: Path) -> list[Path]:
    """Of the HAProxys that run on this machine; Ray Serve gives each node's a folder of its own."""
    found = []
    for path in folder.rglob(ingress.SOCKET):
        with contextlib.suppress(OSError):  # one that is gone leaves its socket behind
            _say(path, "show version")
            found.append(path)
    return found


def _counts(application: str) -> tuple[int, int]:
    requests = failed = 0
    for listening in _sockets(Path(_folder())):
        lines = _say(listening, "show stat").removeprefix("# ").splitlines()
        for row in csv.DictReader(lines):
            if row["svname"] == "BACKEND" and application in row["pxname"]:
                classes = [int(row.get(f"hrsp_{kind}xx") or 0) for kind in range(1, 6)]
                requests, failed = requests + sum(classes), failed + classes[-1]
    return requests, failed


def _say(listening: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(SOCKET_TIMEOUT_S)
        talk.connect(str(listening))
        talk.sendall(f"{command}\n".encode())
        talk.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := talk.recv(65536):
            answer += piece
    return answer.decode()
