"""Packages that only some engines need, of the extras `cpu-engines` and `vllm`."""

import importlib.util
from collections.abc import Iterable, Mapping

from jobs.spec.serve import EngineName, TextEngineName

EXTRA = "cpu-engines"
NEEDS: Mapping[EngineName, tuple[str, ...]] = {
    "openvino-int8": ("openvino", "nncf"),
    "openvino-bf16": ("openvino",),
    "openvino-fp32": ("openvino",),
    "onnx-fp32": ("onnxruntime", "onnx"),
}
"""Packages by engine; torch's engines need none."""
TEXT_NEEDS: Mapping[TextEngineName, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "openvino": ("openvino", "nncf", "openvino_genai"),
}
"""Packages by engine that writes text."""
TEXT_EXTRAS: Mapping[TextEngineName, str] = {"vllm": "vllm", "openvino": EXTRA}


def missing(name: EngineName) -> tuple[str, ...]:
    """Packages that an engine needs and that are not installed here."""
    return tuple(p for p in NEEDS.get(name, ()) if importlib.util.find_spec(p) is None)


def refusal(name: EngineName) -> str:
    """Why an engine cannot be made here and what to install; empty if nothing is missing."""
    packages = missing(name)
    return f"{name} needs {_joined(packages)}; {install()}" if packages else ""


def left_out(names: Iterable[EngineName]) -> str:
    """Which of these engines cannot be made here and what to install; empty if all can."""
    lacking = {name: missing(name) for name in names}
    engines = [name for name, packages in lacking.items() if packages]
    packages = dict.fromkeys(package for found in lacking.values() for package in found)
    if not engines:
        return ""
    return (
        f"serve.engine: auto leaves out {_joined(engines)} without {_joined(packages)}; {install()}"
    )


def text_refusal(name: TextEngineName) -> str:
    """Why an engine cannot write text here and what to install; empty if nothing is missing."""
    needed = TEXT_NEEDS.get(name, ())
    packages = [each for each in needed if importlib.util.find_spec(each) is None]
    if not packages:
        return ""
    return f"{name} needs {_joined(packages)}; {install(TEXT_EXTRAS[name])}"


def install(extra: str = EXTRA) -> str:
    """The command that brings the packages of an extra."""
    return f"pip install 'raywinnow[{extra}]'"


def _joined(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
