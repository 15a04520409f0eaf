"""Triton with its Python backend and the same engine, in dynamic batches of 64.

Its interpreter is built for early patches of Python 3.11: 3.11.2 works, 3.11.7 does not.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytriton
from engine import Peer  # beside this script
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

if __name__ == "__main__":
    port, peer = int(sys.argv[1]), Peer()
    libraries = Path(pytriton.__file__).parents[1] / "nvidia_pytriton.libs"
    os.environ["LD_LIBRARY_PATH"] = str(libraries)  # the server looks beside its own copy

    @batch
    def infer(text: np.ndarray) -> dict[str, np.ndarray]:
        """A batch of answers."""
        answers = peer.answer([row[0].decode() for row in text])
        return {
            "label": np.array([[answer["label"].encode()] for answer in answers], dtype=object),
            "score": np.array([[answer["score"]] for answer in answers], np.float32),
        }

    config = TritonConfig(
        http_port=port,
        grpc_port=port + 100,
        metrics_port=port + 200,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        metrics_address="127.0.0.1",
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="m",
            infer_func=infer,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[
                Tensor(name="label", dtype=bytes, shape=(1,)),
                Tensor(name="score", dtype=np.float32, shape=(1,)),
            ],
            config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher()),
            strict=False,
        )
        triton.serve()
