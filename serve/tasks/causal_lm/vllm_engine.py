"""Writes answers with vLLM on a GPU: its scheduler and cache, behind our queue and our texts."""

import asyncio
import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from jobs.spec.train import Precision
from serve.tasks.causal_lm.answer import Settings, TokenLogprob
from serve.tasks.causal_lm.outside_engine import Limits, OutsideEngine, OutsideJob
from serve.tasks.causal_lm.text_engine import UnsupportedSettingError
from serve.tasks.causal_lm.vocabulary import as_lark

LOG = logging.getLogger(__name__)
DTYPES: dict[Precision, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "tf32": "float32",
}
MOST_LOGPROBS = 20
"""Likeliest tokens of which requests may ask for the probabilities."""
LEAST_SEQUENCES = 256
"""Answers that vLLM itself takes together at least, so that `batch_rows` may rise meanwhile."""
LAST_ANSWERS_S = 1.0
"""Time for errors to reach clients before a replica ends."""
SHARE_OF_MEMORY, SHARE_OF_FREE = 0.9, 0.95
"""Of the GPU's memory, and of its free memory: vLLM takes the smaller one."""


class VllmEngine(OutsideEngine):
    """A language model in vLLM's `AsyncLLM`, on an event loop of its own."""

    engine = "vllm"

    def __init__(self, folder: Path, limits: Limits, precision: Precision) -> None:
        """Starts vLLM, which takes about a minute; raises DeployError or vLLM's own errors."""
        super().__init__(folder, limits)
        self._active = 0
        self._free = asyncio.Condition()
        self._tasks = dict[OutsideJob, asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="vllm")
        self._thread.start()
        try:
            self._llm = self._wait(self._started(str(folder), precision))
        except BaseException:
            self._stop()
            raise

    async def _started(self, folder: str, precision: Precision) -> Any:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        fields = engine_fields(folder, precision, self._longest, self.batch_rows)
        share = share_of_memory()
        args = AsyncEngineArgs(**fields, gpu_memory_utilization=share)
        return AsyncLLM.from_engine_args(args, stat_loggers=[self._stats()])

    def _stats(self) -> Any:
        """Returns a class whose objects note how full vLLM's cache is after each step."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        own = self

        class CacheUse(StatLoggerBase):  # type: ignore[misc]  # vLLM is not installed everywhere
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    own.cache_use = float(scheduler_stats.kv_cache_usage)

            def log_engine_initialized(self) -> None:
                pass

        return CacheUse

    def close(self) -> None:
        """Ends vLLM's processes."""
        self._loop.call_soon_threadsafe(self._llm.shutdown)
        self._stop()

    def check(self, settings: Settings) -> None:
        """Raises UnsupportedSettingError if vLLM refuses the settings."""
        sampling_params(settings, self._penalty(settings), self._ends)

    def _penalty(self, settings: Settings) -> float:
        return float(settings.repetition_penalty or self._generation.repetition_penalty or 1.0)

    def _begin(self, job: OutsideJob) -> None:
        def start() -> None:
            task = self._tasks[job] = self._loop.create_task(self._serve(job))
            task.add_done_callback(lambda _: self._over(job, task))

        self._loop.call_soon_threadsafe(start)

    def _leave(self, job: OutsideJob) -> None:
        def cancel() -> None:
            if task := self._tasks.get(job):
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    async def _serve(self, job: OutsideJob) -> None:
        """Writes one answer; leaving vLLM's stream aborts its request within a step."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(job.deadline), self._turn():
                await self._written(job)

    def _over(self, job: OutsideJob, task: "asyncio.Task[None]") -> None:
        """Ends a job whose task is over, or was cancelled before it began."""
        self._tasks.pop(job, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._check_alive()
        self._end(job, error if isinstance(error, Exception) else None)

    def _check_alive(self) -> None:
        """Ends the replica if vLLM's process has died, so that Ray starts another."""
        if self._llm.errored:
            LOG.critical("vLLM has died; the replica ends")
            self._loop.call_later(LAST_ANSWERS_S, os._exit, 1)

    async def _written(self, job: OutsideJob) -> None:
        penalty = self._penalty(job.settings)
        params = sampling_params(job.settings, penalty, self._ends)
        prompt = {"prompt_token_ids": job.ids}
        stream = self._llm.generate(prompt, params, uuid.uuid4().hex)
        async with contextlib.aclosing(stream) as outputs:
            async for output in outputs:
                read = 0 if job.has_begun else len(job.ids)
                self._observe(read + take_output(job, output))
                if job.is_finished:
                    return

    @contextlib.asynccontextmanager
    async def _turn(self) -> Any:
        """Waits until fewer than `batch_rows` answers are written."""
        async with self._free:
            await self._free.wait_for(lambda: self._active < self.batch_rows)
            self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        async with self._free:
            self._free.notify_all()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def engine_fields(folder: str, precision: Precision, longest: int, rows: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's engine, but for the memory.

    Args:
        folder: The model's files.
        precision: Precision of weights and cache.
        longest: Most tokens of a conversation with its answer.
        rows: Most answers that are written together.
    """
    from vllm.config import StructuredOutputsConfig

    return {
        "model": folder,
        "tokenizer": folder,
        "dtype": DTYPES[precision],
        "max_model_len": longest,
        "max_num_seqs": max(LEAST_SEQUENCES, rows),
        "max_logprobs": MOST_LOGPROBS,
        "logprobs_mode": "raw_logprobs",  # the model's own, before any setting
        "generation_config": "vllm",  # ours are in each request
        "structured_outputs_config": StructuredOutputsConfig(backend="guidance"),  # as ours
        "enable_prefix_caching": True,
        "trust_remote_code": False,
    }


def share_of_memory() -> float:
    """Returns the share of the GPU's memory that vLLM may take."""
    free, whole = torch.cuda.mem_get_info()
    return min(SHARE_OF_MEMORY, SHARE_OF_FREE * free / whole)


def sampling_params(settings: Settings, penalty: float, ends: frozenset[int]) -> Any:
    """Returns vLLM's parameters of an answer.

    Stop texts are not among them: texts are ours.

    Args:
        settings: The answer's settings.
        penalty: Its repetition penalty, or the model's.
        ends: Tokens that end an answer.

    Raises:
        UnsupportedSettingError: if vLLM refuses one.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    form = None
    if settings.grammar is not None:
        form = StructuredOutputsParams(grammar=as_lark(settings.grammar.text))
    ignores_end = settings.ignores_end and form is None
    try:
        return SamplingParams(
            max_tokens=settings.most_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=max(0, settings.top_k),
            min_p=settings.min_p,
            seed=settings.seed,
            frequency_penalty=settings.frequency_penalty,
            presence_penalty=settings.presence_penalty,
            repetition_penalty=penalty,
            logit_bias=dict(settings.logit_bias) or None,
            min_tokens=min(settings.min_tokens, settings.most_tokens),
            ignore_eos=ignores_end,
            stop_token_ids=None if ignores_end else sorted(ends),
            logprobs=settings.logprobs,
            structured_outputs=form,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
    except VLLMValidationError as error:
        name = error.parameter or ""
        raise UnsupportedSettingError(name, f"vLLM refuses it: {error.args[0]}") from None
    except ValueError as error:
        raise UnsupportedSettingError("", f"vLLM refuses the settings: {error}") from None


def take_output(job: OutsideJob, output: Any) -> int:
    """Gives a job the tokens of vLLM's `RequestOutput`; returns their number."""
    if not output.outputs:
        return 0
    (found,) = output.outputs
    tokens = list(found.token_ids)
    logprobs = list(_logprobs(tokens, found.logprobs, job.settings.logprobs))
    job.take(tokens, logprobs)
    if found.finish_reason == "stop":
        job.writer.is_stopped = True
    return len(tokens)


def _logprobs(tokens: Sequence[int], found: Any, most: int | None) -> Iterator[TokenLogprob]:
    """Yields the log-probabilities of tokens, from vLLM's of each place."""
    if most is None or found is None:
        return
    for token, each in zip(tokens, found, strict=True):
        ranked = sorted(each.items(), key=lambda item: -item[1].logprob)
        likeliest = tuple((id_, value.logprob) for id_, value in ranked[:most])
        yield TokenLogprob(token, each[token].logprob, likeliest)
