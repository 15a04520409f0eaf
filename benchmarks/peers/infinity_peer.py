"""infinity with its own torch engine in fp32: it takes no other's."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    command = str(Path(sys.executable).with_name("infinity_emb"))
    words = ["v2", "--model-id", os.environ["PEER_MODEL"], "--served-model-name", "m"]
    words += ["--host", "127.0.0.1", "--port", sys.argv[1], "--engine", "torch", "--device", "cpu"]
    words += ["--dtype", "float32", "--no-bettertransformer", "--batch-size", "64"]
    words += ["--no-model-warmup"]  # it goes through thousands of rows
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ.pop("PYTHONPATH")  # its packages are older than ours
    os.execv(command, [command, *words, "--log-level", "error"])
