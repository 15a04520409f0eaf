"""Chooses the engine that writes a language model's answers: the fastest that writes the model's.

Each candidate's likeliest answers must be the model's own. The choice is kept in the version's
`exports` folder for the same machine and settings.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import logging
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from pydantic import TypeAdapter, ValidationError

from jobs.errors import DeployError, first_line
from jobs.spec.serve import TextEngineName
from jobs.spec.train import Precision
from jobs.storage import files
from jobs.training.model.precision import AUTOCAST
from jobs.training.probing import environment
from serve.batching.client import DeadlineError
from serve.config import ReplicaConfig
from serve.engines import optional_packages
from serve.engines.generating.adapters import Adapted
from serve.engines.generating.reference import Reference, reference_of
from serve.tasks.causal_lm.answer import Settings
from serve.tasks.causal_lm.generator import Generator
from serve.tasks.causal_lm.outside_engine import Limits, OutsideEngine
from serve.tasks.causal_lm.text_engine import TextEngine

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")
NAME = TypeAdapter[TextEngineName](TextEngineName)
CHOICE_FILE = "text-engine.json"
SERVE = Path(__file__).parents[2]
"""Our code that serves."""
CANDIDATES: Mapping[str, tuple[TextEngineName, ...]] = {
    "cpu": ("torch", "openvino"),
    "cuda": ("torch", "vllm"),
}
"""Engines that a job may name on each device; torch serves every model."""
AUTO: dict[str, tuple[TextEngineName, ...]] = {"cpu": ("torch",), "cuda": ("torch", "vllm")}
"""Engines that auto chooses from: those that honour every field of a request. OpenVINO is faster
on a CPU, and refuses grammars, `logit_bias` and `logprobs`, so that a job must name it."""
USERS, PROMPT, ANSWER = 8, 32, 64
"""Answers that are written together while an engine is timed, and most tokens of each part."""
TIMED_S = 5.0
"""Longest timing of an engine, after a first answer."""
TIMEOUT_S = 120.0
"""Longest time for answers that are checked."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a candidate has shown."""

    engine: TextEngineName
    tokens_per_s: float = 0.0
    refusal: str = ""
    """Why it does not serve the model; empty if it may."""


def start(
    config: ReplicaConfig, folder: Path, precision: Precision, adapted: Adapted | None = None
) -> TextEngine:
    """Starts the engine that a job names, or the fastest one of its device.

    Args:
        config: The replica's configuration.
        folder: The model's files.
        precision: Precision of its weights.
        adapted: The base and the slots of an adapter, which torch alone serves.

    Raises:
        DeployError: if the named engine is not installed or cannot serve the model.
        UnsuitableAdapterError: if the base cannot take the adapter.
    """
    if adapted is not None:
        if config.text_engine not in (None, "torch"):
            name = config.text_engine
            raise DeployError(f"serve.engine {name}: it serves no adapters; use auto or torch")
        return _torch(config, folder, precision, adapted)
    if config.text_engine is not None:
        return _named(config.text_engine, config, folder, precision)
    names = candidates(config)
    if len(names) == 1:
        return _torch(config, folder, precision)
    key = _key(config, names, precision)
    chosen = _read_choice(config, key)
    if chosen is None:
        tried = _measure(names, config, folder, precision)
        chosen = max(tried, key=lambda each: each.tokens_per_s).engine
        _write_choice(config, key, chosen, tried)
        found = ", ".join(f"{each.engine} {each.tokens_per_s:.0f} tokens/s" for each in tried)
        LOG.info("serve.engine: auto takes %s (%s)", chosen, found)
    try:
        return _named(chosen, config, folder, precision)
    except DeployError as error:  # such as of memory that another replica still holds
        LOG.warning("serve.engine: auto takes torch: %s", error)
        return _torch(config, folder, precision)


def candidates(config: ReplicaConfig) -> tuple[TextEngineName, ...]:
    """Returns the engines that auto measures: those that are installed here."""
    return tuple(name for name in AUTO[config.device] if not optional_packages.text_refusal(name))


def _named(
    name: TextEngineName, config: ReplicaConfig, folder: Path, precision: Precision
) -> TextEngine:
    """Returns a named engine whose answers are the model's; raises DeployError."""
    what = f"serve.engine {name}: "
    if reason := optional_packages.text_refusal(name):
        raise DeployError(what + reason)
    if name not in CANDIDATES[config.device]:
        device = "a GPU" if config.device == "cuda" else "a CPU"
        choices = " or ".join(CANDIDATES[config.device])
        raise DeployError(f"{what}this replica is on {device}, where {choices} may write")
    if name == "openvino" and precision != "fp32":
        raise DeployError(f"{what}it writes text in fp32 alone, not in {precision}")
    if name == "torch":  # which proves itself, and always has a way to write
        return _torch(config, folder, precision)
    try:
        return _proven(name, config, folder, precision, _reference(config, folder, precision))
    except Exception as error:  # each library has its own
        raise DeployError(
            f"{what}it does not serve {config.version.name}: {first_line(error)}; use auto or torch"
        ) from error


def _torch(
    config: ReplicaConfig, folder: Path, precision: Precision, adapted: Adapted | None = None
) -> Generator:
    settings = config.device, precision, config.threads, config.queue_tokens
    more: dict[str, Any] = {"batch_rows": config.batch_rows, "longest": _longest(config)}
    more["adapted"] = adapted
    return Generator(folder, "AutoModelForCausalLM", *settings, **more)


def _longest(config: ReplicaConfig) -> int:
    return config.max_context or config.version.max_length


def _proven(
    name: TextEngineName,
    config: ReplicaConfig,
    folder: Path,
    precision: Precision,
    reference: Reference,
) -> OutsideEngine:
    """Starts another engine; raises its library's errors, or DeployError if it answers wrongly."""
    made: OutsideEngine
    limits = Limits(_longest(config), config.batch_rows, config.queue_tokens)
    if name == "vllm":
        from serve.tasks.causal_lm.vllm_engine import VllmEngine

        made = VllmEngine(folder, limits, precision)
    else:
        from serve.tasks.causal_lm.openvino_engine import OpenVinoEngine

        made = OpenVinoEngine(folder, Path(config.version.exports), limits, config.threads)
    try:
        reason = reference.difference(_run(_answers(made, reference)))
    except BaseException:
        made.close()
        raise
    if reason:
        made.close()
        raise DeployError(f"its answers are not the model's: {reason}")
    return made


def _measure(
    names: Sequence[TextEngineName], config: ReplicaConfig, folder: Path, precision: Precision
) -> list[Tried]:
    """Checks and times each candidate, one after the other; torch comes first, and may not fail."""
    own = _torch(config, folder, precision)
    tried = [Tried("torch", _rate(own, config))]
    del own
    _free_memory()
    reference = _reference(config, folder, precision)
    for name in names[1:]:
        try:
            made = _proven(name, config, folder, precision, reference)
            tried.append(Tried(name, _rate(made, config)))
            del made
        except Exception as error:  # noqa: BLE001 - each library has its own; torch serves
            reason = first_line(error)
            LOG.warning("serve.engine: auto leaves out %s: %s", name, reason)
            tried.append(Tried(name, refusal=reason))
        _free_memory()
    return tried


def _reference(config: ReplicaConfig, folder: Path, precision: Precision) -> Reference:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, use_safetensors=True, dtype=AUTOCAST.get(precision, torch.float32)
    )
    try:
        return reference_of(model.to(config.device).eval(), _longest(config))
    finally:
        del model
        _free_memory()


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


async def _answers(made: OutsideEngine, reference: Reference) -> list[list[int]]:
    """Returns the likeliest answers to a reference's prompts, which are asked at once."""
    asked = zip(reference.prompts, reference.answers, strict=True)
    tasks = (made.likeliest(prompt, len(own), TIMEOUT_S) for prompt, own in asked)
    return list(await asyncio.gather(*tasks))


def _rate(made: TextEngine, config: ReplicaConfig) -> float:
    """Returns the tokens that an engine writes per second for several users; closes it."""
    draw, longest = random.Random(0), _longest(config)
    read = max(1, min(PROMPT, longest // 2))
    settings = Settings(max(1, min(ANSWER, longest - read)), temperature=0.0, ignores_end=True)

    async def written(timeout_s: float) -> int:
        ids = [draw.randrange(made.vocabulary_size) for _ in range(read)]
        tokens = 0
        with contextlib.suppress(DeadlineError):  # one that is so slow counts what it wrote
            async for piece in made.write(ids, settings, timeout_s):
                tokens = piece.tokens
        return tokens

    async def timed() -> float:
        await written(TIMEOUT_S)
        begin = time.perf_counter()
        count = sum(await asyncio.gather(*(written(TIMED_S) for _ in range(USERS))))
        return count / (time.perf_counter() - begin)

    try:
        return _run(timed())
    finally:
        made.close()


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in a thread of its own, as the caller's may have an event loop."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _key(
    config: ReplicaConfig, names: Sequence[TextEngineName], precision: Precision
) -> dict[str, str]:
    """Returns the machine and settings for which a kept choice is valid."""
    own = {"names": ",".join(names), "precision": precision, "longest": str(_longest(config))}
    own |= {"rows": str(config.batch_rows), "serve": environment.digest_of(SERVE)}
    own |= {name: metadata.version(name) for name in names if name != "torch"}
    return {**environment.describe(config.device), **own, "threads": str(config.threads)}


def _read_choice(config: ReplicaConfig, key: Mapping[str, str]) -> TextEngineName | None:
    try:
        stored = json.loads((Path(config.version.exports) / CHOICE_FILE).read_bytes())
        return NAME.validate_python(stored["engine"]) if stored["for"] == key else None
    except (OSError, ValueError, KeyError, ValidationError):
        return None


def _write_choice(
    config: ReplicaConfig, key: Mapping[str, str], chosen: TextEngineName, tried: Sequence[Tried]
) -> None:
    value = {"for": key, "engine": chosen, "tried": [asdict(each) for each in tried]}
    text = json.dumps(value, indent=2) + "\n"
    files.write_atomically(Path(config.version.exports) / CHOICE_FILE, text.encode())
