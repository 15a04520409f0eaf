"""LitServe with the same engine and dynamic batches of 64 within 5 ms."""

import sys
from typing import Any

import litserve
from engine import Peer  # beside this script


class Api(litserve.LitAPI):
    """One model in one worker process."""

    def setup(self, device: str) -> None:
        """Load."""
        self.peer = Peer()

    def decode_request(self, request: dict[str, Any]) -> str:
        """The text of a request."""
        return str(request["inputs"])

    def batch(self, inputs: list[str]) -> list[str]:
        """Texts stay a list."""
        return inputs

    def predict(self, inputs: list[str] | str) -> Any:
        """A batch of answers."""
        return self.peer.answer(inputs if isinstance(inputs, list) else [inputs])

    def unbatch(self, output: Any) -> Any:
        """One answer for each request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """As JSON."""
        return output


if __name__ == "__main__":
    batched = Api(max_batch_size=64, batch_timeout=0.005, api_path="/predict")
    server = litserve.LitServer(batched, accelerator="cpu", timeout=60)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
