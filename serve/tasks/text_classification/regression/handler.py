"""The handler of a regression: numbers in the unit of the training rows."""

from collections.abc import Sequence

from serve.batching.client import Answer
from serve.batching.rows import Text
from serve.http.open_inference import Tensor, TensorInfo
from serve.tasks.text_classification import schemas
from serve.tasks.text_classification.handler import ClassificationHandler
from serve.tasks.text_classification.regression.schemas import ValueRequest
from serve.tasks.text_classification.schemas import PredictRequest


class RegressionHandler(ClassificationHandler):
    """Answers requests with the numbers of each text."""

    def parse(self, body: bytes) -> tuple[PredictRequest, list[Text]]:
        """Returns the predict request in a body, and its texts; raises HttpError."""
        request = schemas.parse(body, ValueRequest)
        return request, schemas.as_texts(request.inputs, is_pair=self.config.version.is_pair)

    def answer(self, scores: Sequence[float], request: PredictRequest) -> object:
        """Returns the number of one column, or the numbers of several by their columns."""
        if len(scores) == 1:
            return {"value": scores[0]}
        return {"values": dict(zip(self.config.version.labels, scores, strict=True))}

    def tensors(self, answer: Answer) -> list[Tensor]:
        """The numbers of each text."""
        every = [score for row in answer.scores for score in row]
        shape = [len(answer.scores), len(self.config.version.labels)]
        return [Tensor(name="values", shape=shape, datatype="FP32", data=every)]

    def output_info(self) -> list[TensorInfo]:
        """Name, type and shape of each output tensor."""
        shape = [-1, len(self.config.version.labels)]
        return [TensorInfo(name="values", datatype="FP32", shape=shape)]
