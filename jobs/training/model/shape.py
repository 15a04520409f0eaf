"""The dimensions of a transformer, from which its size follows without loading it."""

from dataclasses import dataclass

PIECE_LOGITS = 2**27
"""Most logits that training makes at once: 0.5 GiB in fp32, enough tokens to keep a GPU busy."""
EVAL_PIECE_LOGITS = 2**25
"""Most logits that an evaluation makes at once: it cannot use the memory of captured steps."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a model that determine its memory."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int
    """Number of learned position embeddings; 0 for rotary positions."""
    is_gated: bool = False
    """Whether feed-forward layers have a third matrix, as in Llama."""
    key_value_share: float = 1.0
    """Key and value heads divided by query heads."""
    has_own_head: bool = False
    """Whether the output layer over the vocabulary has its own weights, not the embedding's."""
    scores_vocabulary: bool = False
    """Whether the model scores every word of the vocabulary at each token."""
    decoder_layers: int = 0
    """How many of `layers` are a decoder's behind an encoder, and read targets where there are."""
    counted: int | None = None
    """Number of all weights, counted in the model; None if the formula is exact."""

    @property
    def embedding_parameters(self) -> int:
        """Number of weights of the embeddings."""
        return (self.vocabulary + self.positions + (0 if self.is_gated else 4)) * self.hidden

    @property
    def parameters(self) -> int:
        """Number of weights: embeddings, layers, and a classification head or an output layer."""
        if self.counted is not None:
            return self.counted
        rest = self._head if self.is_gated else self.hidden * (self.hidden + 1)
        return self.embedding_parameters + self.layers * self._layer + rest

    @property
    def _layer(self) -> int:
        hidden, wide = self.hidden, self.intermediate
        if self.is_gated:  # no biases
            attention = int(2 * hidden * hidden * (1 + self.key_value_share))
            return attention + 3 * hidden * wide + 2 * hidden
        return 4 * hidden * (hidden + 1) + hidden * (2 * wide + 1) + wide + 4 * hidden

    @property
    def _head(self) -> int:
        return self.hidden + (self.vocabulary * self.hidden if self.has_own_head else 0)


_SMOLLM2_360M = ModelShape(32, 960, 2560, 49152, 0, is_gated=True, key_value_share=1 / 3)
KNOWN_SHAPES = {
    "bert-base-uncased": ModelShape(12, 768, 3072, 30522, 512),
    "bert-base-cased": ModelShape(12, 768, 3072, 28996, 512),
    "bert-large-uncased": ModelShape(24, 1024, 4096, 30522, 512),
    "distilbert-base-uncased": ModelShape(6, 768, 3072, 30522, 512),
    "all-MiniLM-L6-v2": ModelShape(6, 384, 1536, 30522, 512),
    "roberta-base": ModelShape(12, 768, 3072, 50265, 514),
    "roberta-large": ModelShape(24, 1024, 4096, 50265, 514),
    "t5-small": ModelShape(12, 512, 2048, 32128, 0, decoder_layers=6, counted=60_506_624),
    "t5-base": ModelShape(24, 768, 3072, 32128, 0, decoder_layers=12, counted=222_903_552),
    "bart-base": ModelShape(12, 768, 3072, 50265, 1026, decoder_layers=6, counted=139_420_416),
    "SmolLM2-360M": _SMOLLM2_360M,
    "SmolLM2-360M-Instruct": _SMOLLM2_360M,
}
"""Shapes of configurations on the hub, so that planning these models works offline."""
