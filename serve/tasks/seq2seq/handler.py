"""The handler of an encoder-decoder model: queues texts and renders what is written for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic_core

from serve.config import ReplicaConfig
from serve.http.handler import HttpResponse
from serve.tasks.generating.handler import GenerationHandler
from serve.tasks.seq2seq.schemas import PATH, GenerateRequest, WriterInfo
from serve.tasks.seq2seq.writer import Settings, Writer


class WriterHandler(GenerationHandler[Writer]):
    """Answers texts with the texts that a model writes for them."""

    path = PATH

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and starts its generator; raises CheckpointError or DeployError."""
        super().__init__(config)
        self.generator.batch_rows = config.batch_rows
        self._headers = {"content-type": "application/json", "x-model-version": config.version.id}

    def start(self, folder: Path) -> Writer:
        """Returns the writer of the model in a folder."""
        own = self.config
        limits = own.queue_tokens, own.version.max_length
        return Writer(folder, own.device, self.precision, own.threads, *limits)

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on."""
        super().adjust(changes)
        self.generator.batch_rows = self.config.batch_rows

    @property
    def info(self) -> WriterInfo:
        """The model that this endpoint serves."""
        version, defaults = self.config.version, self.generator.defaults
        return WriterInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=f"torch-{self.precision}",
            max_length=version.max_length,
            max_new_tokens=defaults.most_tokens,
            num_beams=defaults.num_beams,
            prefix=self.generator.prefix,
        )

    async def generate(self, request: GenerateRequest, timeout_s: float) -> HttpResponse:
        """Returns what is written for a request's texts as JSON.

        Raises:
            HttpError: 422 for a text without a token, or one that was cut and may not be; 503 if
                the queue is full, 504 if the texts are not complete in time.
        """
        defaults, most = self.generator.defaults, self.generator.most_tokens
        settings = Settings(
            min(request.max_new_tokens or defaults.most_tokens, most),
            request.num_beams or defaults.num_beams,
        )
        timeout_s = min(timeout_s, self.config.timeout_s)
        with self.counting() as counted:
            written = await self.generator.write(
                request.texts, settings, timeout_s, truncates=request.truncate
            )
            counted.read, counted.written = written.read, sum(t.tokens for t in written.texts)
        found = [{"text": text.text, "finish_reason": text.finish} for text in written.texts]
        headers = {**self._headers, **({"x-truncated": "true"} if written.is_cut else {})}
        value = found[0] if isinstance(request.inputs, str) else found
        return HttpResponse(200, pydantic_core.to_json(value), headers)
