"""BentoML with the same engine and adaptive batches of 64; its batches take lists, here of one."""

import os
import sys
from pathlib import Path
from typing import Any

import bentoml
from engine import Peer  # beside this script


@bentoml.service(workers=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}})
class Classifier:
    """One model in one worker process."""

    def __init__(self) -> None:
        self.peer = Peer()

    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=1000, route="/predict")
    def predict(self, inputs: list[str]) -> list[dict[str, Any]]:
        """A batch of answers."""
        return self.peer.answer(inputs)


if __name__ == "__main__":
    place = str(Path(__file__).resolve().parent)
    words = ["-m", "bentoml", "serve", "bentoml_peer:Classifier", "--working-dir", place]
    words += ["--host", "127.0.0.1", "--port", sys.argv[1]]
    os.environ["PYTHONPATH"] = f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    os.execv(sys.executable, [sys.executable, *words])
