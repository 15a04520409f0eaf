"""What of a node others can reach, and who can read its tokens: from facts to findings."""

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
"""Where Ray looks for its token when nothing else is said."""


@dataclass(frozen=True, slots=True)
class Role:
    """A process of a cluster that listens."""

    name: str
    signs: tuple[str, ...]
    """Any of which its command line holds; Ray renames some of its processes when they are up."""
    audience: str
    """Who needs to reach it."""
    runs_code: bool = True
    """Whether who reaches it without a token runs code on the node."""


ROLES = (
    Role("GCS", ("gcs_server",), "nodes of the cluster"),
    Role("node manager", ("raylet/raylet",), "nodes of the cluster"),
    Role("dashboard and jobs API", ("dashboard/dashboard.py",), "who submits jobs"),
    Role(
        "node agent and metrics",
        ("ray::DashboardAgent", "dashboard/agent.py"),
        "nodes of the cluster, Prometheus",
    ),
    Role(
        "runtime environments",
        ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
        "nobody but its node",
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
    """By the environment that its process was started with."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        found = ipaddress.ip_address(self.address)
        inner = getattr(found, "ipv4_mapped", None)
        return bool((inner or found).is_loopback)


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a node shows of itself, as far as this user may see."""

    node: str
    listening: tuple[Listening, ...]
    loose_files: tuple[str, ...]
    """Files with tokens that others than their owner can read, with their modes."""


def gather() -> Exposure:
    """Look at this node."""
    found = {each for process in psutil.process_iter() for each in _listening(process)}
    ordered = sorted(found, key=lambda each: (each.port, each.address))
    return Exposure(socket.gethostname(), tuple(ordered), tuple(_loose()))


def judge(node: Exposure) -> Iterator[Finding]:
    """What should be different."""
    for each in node.listening:
        if each.is_local:
            continue
        place = f"{each.role.name} listens on {each.address}:{each.port}"
        if each.role.runs_code and not each.asks_for_tokens:
            yield Finding(
                node.node,
                "error",
                f"{place} and asks for no token: whoever reaches it can run code; start Ray with"
                " RAY_AUTH_MODE=token, and close the port to all but these: "
                f"{each.role.audience}",
            )
        else:
            yield Finding(
                node.node, "warning", f"{place}; close it to all but these: {each.role.audience}"
            )
    for path in node.loose_files:
        yield Finding(node.node, "error", f"others can read {path}; run chmod 600 on it")


def advisories(python: str = sys.executable, *options: str) -> Iterator[Finding]:
    """Known holes in an environment's packages, if pip-audit is there and reaches its data.

    `options` of pip-audit may name other packages.
    """
    node = socket.gethostname()
    if python == sys.executable and importlib.util.find_spec("pip_audit") is None:
        message = "advisories were not looked up: pip-audit is not installed"
        yield Finding(node, "warning", message)
        return
    command = [python, "-P", "-m", "pip_audit", "--format=json", "--progress-spinner=off", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=AUDIT_TIMEOUT_S
        )
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        message = "advisories were not looked up: pip-audit did not reach its data"
        yield Finding(node, "warning", message)
        return
    unseen = [each["name"] for each in packages if "skip_reason" in each]
    unseen = [name for name in unseen if name != DISTRIBUTION]  # no database knows it
    if unseen:
        some = ", ".join(unseen[:3]) + (", …" if len(unseen) > 3 else "")
        message = f"advisories of {len(unseen)} of {len(packages)} packages were not found: {some}"
        yield Finding(node, "warning", message)
    for package in packages:
        for hole in package.get("vulns", ()):
            fixed = ", ".join(hole["fix_versions"]) or "no version yet"
            yield Finding(
                node,
                "error",
                f"{package['name']} {package['version']} has {hole['id']}; it is mended in {fixed}",
            )


def role_of(command: Sequence[str]) -> Role | None:
    """What a process is to the cluster, by its command line."""
    words = " ".join(command[:8])
    signed = (role for role in ROLES if any(sign in words for sign in role.signs))
    return next(signed, None)


def _listening(process: psutil.Process) -> Iterator[Listening]:
    # processes end meanwhile, and those of others are not ours to see
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
