"""The engine that peers serve: graph, tokenizer and answer are ours, the batches theirs."""

import os
from pathlib import Path
from typing import Any

from serve.engines.choose import GateRows, Maker
from serve.engines.engine import softmax
from serve.engines.rows import Tokenizer

MODEL, EXPORTS = Path(os.environ["PEER_MODEL"]), Path(os.environ["PEER_EXPORTS"])
LABELS = os.environ["PEER_LABELS"].split(",")


class Peer:
    """Texts to labels in one call."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(MODEL, int(os.environ["PEER_MAX_LENGTH"]))
        maker = Maker(MODEL, EXPORTS, self.tokenizer, os.environ["PEER_DEVICE"], 1)  # type: ignore[arg-type]
        self.engine = maker.make(os.environ["PEER_ENGINE"], GateRows((), ()))  # type: ignore[arg-type]

    def answer(self, texts: list[str]) -> list[dict[str, Any]]:
        """A label and its score for each text."""
        rows = self.tokenizer.rows([(text,) for text in texts])
        logits = self.engine.run(rows)
        scores = softmax(logits)
        return [
            {"label": LABELS[int(best)], "score": float(row[best])}
            for row, best in zip(scores, scores.argmax(axis=1), strict=True)
        ]
