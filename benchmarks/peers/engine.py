"""The engine that peers serve: graph, tokenizer and answer are ours, the batches theirs."""

import os
from pathlib import Path
from typing import Any

from serve.batching.policy import Limits
from serve.batching.rows import Tokenizer
from serve.engines.engine import softmax
from serve.engines.engine_factory import EngineFactory, read_eval_sample
from serve.engines.selection import PACKED_TOKENS
from serve.engines.startup import warm_up

MODEL, EXPORTS = Path(os.environ["PEER_MODEL"]), Path(os.environ["PEER_EXPORTS"])
LABELS = os.environ["PEER_LABELS"].split(",")


class Peer:
    """Texts to labels in one call."""

    def __init__(self) -> None:
        device, longest = os.environ["PEER_DEVICE"], int(os.environ["PEER_MAX_LENGTH"])
        self.tokenizer = Tokenizer(MODEL, longest)
        maker = EngineFactory(MODEL, EXPORTS, self.tokenizer, device, 1)  # type: ignore[arg-type]
        sample = read_eval_sample(MODEL)
        self.engine = maker.make(os.environ["PEER_ENGINE"], sample)  # type: ignore[arg-type]
        if device == "cpu":  # as our endpoint does; shapes of a GPU are captured as they come
            warm_up(self.engine, Limits(batch_tokens=PACKED_TOKENS), sample, longest)

    def answer(self, texts: list[str]) -> list[dict[str, Any]]:
        """A label and its score for each text."""
        rows = self.tokenizer.rows([(text,) for text in texts])
        logits = self.engine.run(rows)
        scores = softmax(logits)
        return [
            {"label": LABELS[int(best)], "score": float(row[best])}
            for row, best in zip(scores, scores.argmax(axis=1), strict=True)
        ]
