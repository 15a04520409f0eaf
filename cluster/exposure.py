"""Finds ports of a node that other machines can reach, and token files that others can read."""

import contextlib
import importlib.util
import ipaddress
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.doctor import Finding
from jobs.storage import files
from raywinnow import DISTRIBUTION

AUDIT_TIMEOUT_S = 120.0
RAY_TOKEN = "~/.ray/auth_token"
"""Ray's default token file."""


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of cluster process that listens on ports."""

    name: str
    signs: tuple[str, ...]
    """Texts, one of which is in its command line; Ray renames some processes after their start."""
    audience: str
    """Clients that need access to it."""
    runs_code: bool = True
    """Whether a client without a token can run code through it if tokens are off."""


ROLES = (
    Role("GCS", ("gcs_server",), "nodes of the cluster"),
    Role("node manager", ("raylet/raylet",), "nodes of the cluster"),
    Role("dashboard and jobs API", ("dashboard/dashboard.py",), "users who submit jobs"),
    Role(
        "node agent and metrics",
        ("ray::DashboardAgent", "dashboard/agent.py"),
        "nodes of the cluster, Prometheus",
    ),
    Role(
        "runtime environments",
        ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
        "processes of its own node",
    ),
    Role("client server", ("ray.util.client.server",), "clients of ray://"),
    Role("endpoint", ("haproxy",), "clients of the endpoint", runs_code=False),
    Role("endpoint without Ray", ("winnow serve",), "clients of the endpoint", runs_code=False),
    Role("replica", ("ray::ServeReplica",), "nodes of the cluster, HAProxy of every node"),
    Role("worker", ("ray::",), "nodes of the cluster"),
)


@dataclass(frozen=True, slots=True)
class Listening:
    """A port that a process of the cluster listens on."""

    role: Role
    address: str
    port: int
    asks_for_tokens: bool
    """As set in the environment of its process."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        address = ipaddress.ip_address(self.address)
        inner = getattr(address, "ipv4_mapped", None)
        return bool((inner or address).is_loopback)


@dataclass(frozen=True, slots=True)
class Exposure:
    """The ports and token files of a node, as far as this user may inspect them."""

    node: str
    listening: tuple[Listening, ...]
    loose_files: tuple[str, ...]
    """Token files that users other than the owner can read, with their modes."""


def gather() -> Exposure:
    """Returns the exposure of this node."""
    ports = {each for process in psutil.process_iter() for each in _listening(process)}
    ordered = sorted(ports, key=lambda each: (each.port, each.address))
    return Exposure(socket.gethostname(), tuple(ordered), tuple(_loose()))


def judge(node: Exposure) -> Iterator[Finding]:
    """Yields a finding for each port that other machines can reach and each readable token file."""
    for each in node.listening:
        if each.is_local:
            continue
        place = f"{each.role.name} listens on {each.address}:{each.port}"
        if each.role.runs_code and not each.asks_for_tokens:
            yield Finding(
                node.node,
                "error",
                f"{place} and requires no token, so anyone with network access can run code; start"
                " Ray with RAY_AUTH_MODE=token, and close the port to all clients but: "
                f"{each.role.audience}",
            )
        else:
            yield Finding(
                node.node, "warning", f"{place}; close it to all clients but: {each.role.audience}"
            )
    for path in node.loose_files:
        yield Finding(node.node, "error", f"other users can read {path}; run chmod 600 on it")


def advisories(python: str = sys.executable, *options: str) -> Iterator[Finding]:
    """Yields known vulnerabilities of the packages of a Python environment, as pip-audit reports.

    Yields a warning if pip-audit is not installed or has no access to its database. `options` are
    passed to pip-audit.
    """
    node = socket.gethostname()
    if python == sys.executable and importlib.util.find_spec("pip_audit") is None:
        message = "advisories were not checked: pip-audit is not installed; install it"
        yield Finding(node, "warning", message)
        return
    command = [python, "-P", "-m", "pip_audit", "--format=json", "--progress-spinner=off", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=AUDIT_TIMEOUT_S
        )
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        message = "advisories were not checked: pip-audit could not reach its database"
        yield Finding(node, "warning", message)
        return
    unseen = [each["name"] for each in packages if "skip_reason" in each]
    unseen = [name for name in unseen if name != DISTRIBUTION]  # no database knows it
    if unseen:
        some = ", ".join(unseen[:3]) + (", …" if len(unseen) > 3 else "")
        message = f"{len(unseen)} of {len(packages)} packages are in no advisory database: {some}"
        yield Finding(node, "warning", message)
    for package in packages:
        for hole in package.get("vulns", ()):
            fixed = ", ".join(hole["fix_versions"]) or "no version yet"
            yield Finding(
                node,
                "error",
                f"{package['name']} {package['version']} has {hole['id']}; fixed in {fixed}",
            )


def role_of(command: Sequence[str]) -> Role | None:
    """Returns the role of a process with this command line; None outside the cluster."""
    words = " ".join(command[:8])
    signed = (role for role in ROLES if any(sign in words for sign in role.signs))
    return next(signed, None)


def _listening(process: psutil.Process) -> Iterator[Listening]:
    # a process may end meanwhile or belong to another user
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        role = role_of(process.cmdline())
        if role:
            asks = process.environ().get("RAY_AUTH_MODE") == "token"
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield Listening(role, connection.laddr.ip, connection.laddr.port, asks)


def _loose() -> Iterator[str]:
    own = files.home() / "token"
    for path in {own, Path(os.environ.get("RAY_AUTH_TOKEN_PATH", RAY_TOKEN)).expanduser()}:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                yield f"{path} (mode {mode:o})"
