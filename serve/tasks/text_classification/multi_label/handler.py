"""The handler of a classifier with several labels: the labels that reach their thresholds."""

from collections.abc import Sequence

from serve.batching.client import Answer, InferenceClient
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.metrics import Metrics
from serve.http.open_inference import Tensor, TensorInfo
from serve.tasks.text_classification.handler import ClassificationHandler
from serve.tasks.text_classification.schemas import PredictRequest

THRESHOLD = 0.5
"""Of every label of a version that was published without thresholds."""


class MultiLabelHandler(ClassificationHandler):
    """Answers requests with every label of a text whose score reaches the label's threshold."""

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, choice, client, metrics)
        version = config.version
        self._thresholds = version.thresholds or (THRESHOLD,) * len(version.labels)

    def answer(self, scores: Sequence[float], request: PredictRequest) -> object:
        """Returns the labels that reach their thresholds, or `top_k` labels, the best first."""
        if request.top_k is not None:
            return super().answer(scores, request)
        pairs = enumerate(zip(scores, self._thresholds, strict=True))
        return self.best(scores, [n for n, (score, least) in pairs if score >= least])

    def tensors(self, answer: Answer) -> list[Tensor]:
        """Those of a classifier, and 1 for each label that reaches its threshold, else 0."""
        count, labels = len(answer.scores), len(self._thresholds)
        given = [
            float(score >= least)
            for scores in answer.scores
            for score, least in zip(scores, self._thresholds, strict=True)
        ]
        is_given = Tensor(name="given", shape=[count, labels], datatype="FP32", data=given)
        return [*super().tensors(answer), is_given]

    def output_info(self) -> list[TensorInfo]:
        """Name, type and shape of each output tensor."""
        shape = [-1, len(self._thresholds)]
        return [*super().output_info(), TensorInfo(name="given", datatype="FP32", shape=shape)]
