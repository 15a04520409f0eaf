"""LitServe with the same engine and dynamic batches of as many texts within 5 ms."""

import os
import sys
from typing import Any

import litserve
from engine import Peer  # beside this script


class Api(litserve.LitAPI):
    """One model in one worker process."""

    def setup(self, device: str) -> None:
        """Load."""
        self.peer = Peer()

    def decode_request(self, request: dict[str, Any]) -> str | list[str]:
        """The text of a request, or its texts."""
        inputs: str | list[str] = request["inputs"]
        return inputs

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Requests stay a list."""
        return inputs

    def predict(self, inputs: list[Any]) -> Any:
        """A batch of answers; requests of lists are put end to end."""
        lists = [value if isinstance(value, list) else [value] for value in inputs]
        answers = iter(self.peer.answer([text for texts in lists for text in texts]))
        found = [[next(answers) for _ in texts] for texts in lists]
        return [
            own if isinstance(value, list) else own[0]
            for own, value in zip(found, inputs, strict=True)
        ]

    def unbatch(self, output: Any) -> Any:
        """One answer for each request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """As JSON."""
        return output


if __name__ == "__main__":
    batched = Api(
        max_batch_size=int(os.environ["PEER_BATCH"]), batch_timeout=0.005, api_path="/predict"
    )
    server = litserve.LitServer(batched, accelerator=os.environ["PEER_DEVICE"], timeout=60)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
