"""MLServer with the same engine and adaptive batches of 64 within 5 ms."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from engine import Peer  # beside this script
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Classifier(MLModel):
    """One model in the server's own process."""

    async def load(self) -> bool:
        """Load."""
        self.peer = Peer()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch of answers, off the event loop."""
        texts = StringCodec.decode_input(payload.inputs[0])
        answers = await asyncio.to_thread(self.peer.answer, texts)
        labels = StringCodec.encode_output("label", [answer["label"] for answer in answers])
        scores = StringCodec.encode_output("score", [str(answer["score"]) for answer in answers])
        return InferenceResponse(model_name=self.name, outputs=[labels, scores])


if __name__ == "__main__":
    port, here = int(sys.argv[1]), Path(__file__).parent
    folder = Path(tempfile.mkdtemp())
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 100,
        "metrics_port": port + 200,
        "parallel_workers": 0,
        "debug": False,
    }
    model = {
        "name": "m",
        "implementation": "mlserver_peer.Classifier",
        "max_batch_size": 64,
        "max_batch_time": 0.005,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ["PYTHONPATH"]])
    command = str(Path(sys.executable).with_name("mlserver"))
    os.execv(command, [command, "start", str(folder)])
