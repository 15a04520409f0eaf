"""Rules of `serve.engine`: which engines serve a task, and on which devices they run."""

from collections.abc import Iterator
from typing import get_args

from jobs.spec.job import JobSpec
from jobs.spec.rules import Violation
from jobs.spec.serve import EngineName, TextEngineName
from jobs.spec.task import EngineKind

NAMES: dict[EngineKind, tuple[str, ...]] = {
    "scores": get_args(EngineName),
    "text": get_args(TextEngineName),
}
CPU = "cpu"
OPENVINO_PRECISIONS = ("auto", "fp32")
"""Values of `serve.precision` with which OpenVINO writes text."""


def engine_suits_the_job(spec: JobSpec) -> Iterator[Violation]:
    """A named engine is one of the task's, and runs on the devices of a replica."""
    serve = spec.serve
    if serve is None or serve.engine == "auto" or "engine" not in spec.task.serve_fields:
        return
    place, name = ("serve", "engine"), serve.engine
    known = NAMES[spec.task.engines]
    if name not in known:
        choices = ", ".join(known)
        yield Violation(place, f"{name} does not serve {spec.task.name}; use auto, or {choices}")
        return
    is_cpu = serve.accelerators.name.lower() == CPU
    if name == "vllm" and is_cpu:
        message = "vllm runs on GPUs, and serve.accelerators is cpu; use auto, torch or openvino"
        yield Violation(place, message)
    if name == "openvino" and not is_cpu:
        message = f"openvino runs on CPUs, and serve.accelerators is {serve.accelerators}"
        yield Violation(place, f"{message}; use auto, torch or vllm")
    adapter = spec.model.adapter
    if name in ("vllm", "openvino") and adapter is not None and not adapter.merge:
        message = f"{name} serves no adapters; use auto or torch, or merge the adapter"
        yield Violation(place, message)
    if name == "openvino" and serve.precision not in OPENVINO_PRECISIONS:
        message = f"{serve.precision} is no precision in which openvino writes text; use fp32"
        yield Violation(("serve", "precision"), message)
