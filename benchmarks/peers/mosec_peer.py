"""mosec, a server with its front in Rust, with the same engine and batches of 64 within 5 ms."""

import sys
from typing import Any

import mosec
from engine import Peer  # beside this script


class Worker(mosec.Worker):
    """One model in one worker process."""

    def __init__(self) -> None:
        self.peer = Peer()

    def forward(self, data: list[dict[str, Any]]) -> list[Any]:
        """A batch of answers."""
        return self.peer.answer([str(item["inputs"]) for item in data])


if __name__ == "__main__":
    port = sys.argv[1]
    sys.argv = [sys.argv[0], "--port", port, "--address", "127.0.0.1", "--log-level", "warning"]
    server = mosec.Server()
    server.append_worker(Worker, num=1, max_batch_size=64, max_wait_time=5, route="/predict")
    server.run()
