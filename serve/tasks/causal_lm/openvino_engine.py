"""Writes answers with OpenVINO GenAI on a CPU: continuous batching with a paged cache."""

import contextlib
import json
import logging
import queue
import random
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jobs.errors import DeployError
from jobs.storage import files
from serve.engines.generating import choice, openvino_export
from serve.engines.generating.token_batch import CacheTooSmallError
from serve.tasks.causal_lm.answer import Settings
from serve.tasks.causal_lm.outside_engine import Limits, OutsideEngine, OutsideJob
from serve.tasks.causal_lm.text_engine import UnsupportedSettingError

LOG = logging.getLogger(__name__)
GIB = 2**30
STEP_TOKENS = 256
"""Most tokens of a step: prompts are read in pieces beside answers that are written."""
BLOCK = 32
"""Tokens of a block of the cache, a multiple of OpenVINO's own."""
SEEDS = 2**31
LACKS: Mapping[str, str] = {
    "logit_bias": "serve.engine: openvino adds nothing to single tokens",
    "logprobs": "serve.engine: openvino tells no probabilities of the model's own",
    "": "serve.engine: openvino holds answers to no grammar",
}
"""Fields that this engine does not do, and what a client is told."""


class OpenVinoEngine(OutsideEngine):
    """A language model in OpenVINO GenAI's continuous batching, on its own thread."""

    engine = "openvino"

    def __init__(self, folder: Path, exports: Path, limits: Limits, threads: int) -> None:
        """Exports the model where that has not been done, and reads it.

        Args:
            folder: The model's files.
            exports: Folder for the graph.
            limits: What it may take.
            threads: Threads of the CPU.

        Raises:
            DeployError: if the model's kind is not exported.
        """
        super().__init__(folder, limits)
        if reason := openvino_export.reason_against(self._config):
            raise DeployError(f"openvino cannot write this model's answers: {reason}")
        graph = exported(folder, exports)
        self._room = self._cache_tokens()
        self._pipeline = self._opened(graph, threads)
        self._handles = dict[int, tuple[OutsideJob, Any]]()
        self._number = 0
        self._jobs: queue.SimpleQueue[OutsideJob | None] = queue.SimpleQueue()
        self._held = list[OutsideJob]()
        self._thread = threading.Thread(target=self._run, daemon=True, name="openvino")
        self._thread.start()

    def _cache_tokens(self) -> int:
        """Returns the tokens that the cache holds, from the free memory."""
        import torch

        free = choice.free_memory(torch.device("cpu"))
        room = int(choice.SHARE_OF_MEMORY * free / token_bytes(self._config))
        useful = (self.batch_rows + 1) * (self._longest + BLOCK)
        return max(BLOCK, min(room, useful) // BLOCK * BLOCK)

    def _opened(self, graph: Path, threads: int) -> Any:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = self._room // BLOCK
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = max(256, self.batch_rows)
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
        }
        return openvino_genai.ContinuousBatchingPipeline(graph, scheduler, "CPU", settings)

    def close(self) -> None:
        """Ends the thread after the present step."""
        self._jobs.put(None)
        self._thread.join()

    def check(self, settings: Settings) -> None:
        """Raises UnsupportedSettingError if this engine does not do what the settings ask for."""
        asked = {
            "logit_bias": bool(settings.logit_bias),
            "logprobs": settings.logprobs is not None,
            "": settings.grammar is not None,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise UnsupportedSettingError(name, f"{LACKS[name]}; leave it out")
        try:
            generation_config(settings, self._penalty(settings), self._ends).validate()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UnsupportedSettingError("", f"OpenVINO refuses it: {reason}") from None

    def _begin(self, job: OutsideJob) -> None:
        if job.most_tokens > self._room:
            raise CacheTooSmallError(job.most_tokens, self._room)
        self._jobs.put(job)

    def _leave(self, job: OutsideJob) -> None:
        with self._lock:  # nobody is told of a job that has not begun
            if not job.has_begun and job in self._waiting:
                self._waiting.remove(job)

    def _run(self) -> None:
        while True:
            if not self._take():
                left = [*(job for job, _ in self._handles.values()), *self._held]
                while not self._jobs.empty():
                    left += filter(None, [self._jobs.get()])
                for job in left:
                    self._end(job, RuntimeError("the replica ends"))
                return
            try:
                self._pipeline.step()
                with self._post.held():
                    self._read()
                if not self._handles and self._pipeline.has_non_finished_requests():
                    self._pipeline.step()  # which frees the blocks of those that were cancelled
                self.cache_use = float(self._pipeline.get_metrics().cache_usage) / 100
            except Exception as error:
                LOG.exception("a step of OpenVINO failed")
                for job, handle in self._handles.values():
                    handle.cancel()
                    self._end(job, error)
                self._handles.clear()

    def _take(self) -> bool:
        """Begins jobs that have a place; waits if nothing is written; False once it is closed."""
        while True:
            is_idle = not self._handles and not self._held
            while is_idle or not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    return False
                self._held.append(job)
                is_idle = False
            while self._held and len(self._handles) < self.batch_rows:
                job = self._held.pop(0)
                if job.is_over:
                    self._end(job)
                else:
                    self._add(job)
            if self._handles:
                return True

    def _add(self, job: OutsideJob) -> None:
        import openvino

        try:
            config = generation_config(job.settings, self._penalty(job.settings), self._ends)
            ids = openvino.Tensor(np.array([job.ids], dtype=np.int64))
            self._number += 1
            handle = self._pipeline.add_request(self._number, ids, config)
        except Exception as error:  # noqa: BLE001 - given to this client; the others continue
            self._end(job, error)
        else:
            self._handles[self._number] = job, handle

    def _penalty(self, settings: Settings) -> float:
        return float(settings.repetition_penalty or self._generation.repetition_penalty or 1.0)

    def _read(self) -> None:
        """Gives jobs the tokens of the last step, and ends those that have ended."""
        import openvino_genai

        tokens = 0
        for number, (job, handle) in list(self._handles.items()):
            read = 0 if job.has_begun else len(job.ids)
            found = list[int]()
            while handle.can_read():
                (made,) = handle.read().values()
                found += made.generated_ids
            if found:
                job.take(found)
                tokens += read + len(found)
            is_running = handle.get_status() == openvino_genai.GenerationStatus.RUNNING
            if is_running and not job.is_finished:
                continue
            if is_running:
                handle.cancel()
            del self._handles[number]
            self._end(job)
        self._observe(tokens)


def generation_config(settings: Settings, penalty: float, ends: frozenset[int]) -> Any:
    """Returns OpenVINO GenAI's parameters of an answer.

    Args:
        settings: The answer's settings.
        penalty: Its repetition penalty, or the model's.
        ends: Tokens that end an answer.
    """
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = settings.most_tokens
    config.min_new_tokens = min(settings.min_tokens, settings.most_tokens)
    config.ignore_eos = settings.ignores_end or not ends
    end = min(ends, default=0)  # it asks for one even where it is passed over
    config.eos_token_id, config.stop_token_ids = end, {end, *ends}
    config.repetition_penalty = penalty
    config.frequency_penalty = settings.frequency_penalty
    config.presence_penalty = settings.presence_penalty
    config.do_sample = settings.temperature > 0 and settings.min_p < 1
    if config.do_sample:
        config.temperature = settings.temperature
        config.top_p = settings.top_p
        config.min_p = settings.min_p
        if settings.top_k > 0:
            config.top_k = settings.top_k
        seed = settings.seed
        config.rng_seed = random.randrange(SEEDS) if seed is None else seed % SEEDS
    return config


def token_bytes(config: Any) -> int:
    """Returns the bytes of one token in a cache in fp32."""
    own = config.get_text_config()
    heads = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
    size = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return int(2 * 4 * own.num_hidden_layers * heads * size)


def exported(folder: Path, exports: Path) -> Path:
    """Returns the folder of the model's graph, which is written if it does not exist."""
    target = exports / "openvino-text"
    if (target / openvino_export.GRAPH).exists():
        return target
    partial = files.partial_of(target)  # another replica may export it too
    try:
        openvino_export.export(folder, partial)
        shutil.copy(folder / "config.json", partial)
        (partial / "generation_config.json").write_text(json.dumps({}), encoding="utf-8")
        with contextlib.suppress(OSError):  # the other one was faster
            partial.replace(target)
        if not (target / openvino_export.GRAPH).exists():
            raise DeployError(f"{target} has no graph and is in its place; delete it")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
