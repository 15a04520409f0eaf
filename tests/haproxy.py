"""HAProxy with our rules, as Ray Serve runs it: another process for each change."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from cluster import ingress
from tests.builders import eventually, free_port

CONFIGURATION = """
global
    stats socket {folder}/{socket} level admin expose-fd listeners
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option idle-close-on-response
    option redispatch 1
    retry-on {retry_on}
    log 127.0.0.1:{log_port} local0 info
    option httplog
frontend http_frontend
    bind 127.0.0.1:{port}
    http-request return status 503 if {{ path /fails }}
    http-request return status 200 if {{ path /works }}
    use_backend replicas if {{ path_beg / }}
    default_backend replicas
backend replicas
    http-reuse always
"""


class Proxy:
    """HAProxy in front of replicas, with its files in a folder."""

    def __init__(self, folder: Path, log_port: int) -> None:
        self.folder, self._port = folder, free_port()
        self._log_port = log_port
        self.settings = ingress.environment(folder, lambda _: free_port())
        self.host = f"127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *replicas: int, more: str = "") -> None:
        """Begin with another process, which takes the place of the last as soon as it can."""
        program, retry_on = (
            self.settings[f"RAY_SERVE_HAPROXY_{name}"] for name in ("BINARY_PATH", "RETRY_ON")
        )
        text = CONFIGURATION.format(
            folder=self.folder,
            socket=ingress.SOCKET,
            port=self._port,
            log_port=self._log_port,
            retry_on=retry_on,
        )
        text += "".join(f"    server {n} 127.0.0.1:{n}\n" for n in replicas)
        configuration = self.folder / ingress.CONFIGURATION
        configuration.write_text(text + more, encoding="utf-8")
        words = [program, "-db", "-dR", "-f", str(configuration)]
        if self._processes:
            last = self._processes[-1].pid
            words += ["-sf", str(last), "-x", str(self.folder / ingress.SOCKET)]
        self._processes.append(subprocess.Popen(words))

    def reload(self, *replicas: int) -> None:
        """As `start`, once it answers."""
        self.start(*replicas)
        assert eventually(self.is_newest)

    def is_newest(self) -> bool:
        """Whether the process that was started last answers."""
        with contextlib.suppress(OSError, httpx.HTTPError):
            works = httpx.get(f"http://{self.host}/works").status_code == 200
            return works and f"Pid: {self._processes[-1].pid}\n" in self.told("show info")
        return False

    def cpu_s(self) -> float:
        """CPU seconds that the process that was started last has used."""
        used = psutil.Process(self._processes[-1].pid).cpu_times()
        return float(used.user + used.system)

    def told(self, command: str) -> str:
        """What the process that answers says to a command."""
        with socket.socket(socket.AF_UNIX) as talk:
            talk.connect(str(self.folder / ingress.SOCKET))
            talk.sendall(f"{command}\n".encode())
            with talk.makefile(encoding="utf-8") as answer:
                return answer.read()

    def stop(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(folder: Path, *replicas: int, log_port: int = 9) -> Iterator[Proxy]:
    """In front of replicas."""
    proxy = Proxy(folder / "ingress", log_port)
    try:
        proxy.reload(*replicas)
        yield proxy
    finally:
        proxy.stop()
