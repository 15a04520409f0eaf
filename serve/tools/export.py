"""Exports a published model for other servers: as an ONNX graph or a Triton repository."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobs.errors import DeployError
from jobs.spec import task_registry
from serve.engines import optional_packages, selection
from serve.engines.engine import Choice, Head
from serve.engines.engine_factory import EngineFactory, eval_sample_of
from serve.engines.openvino_graph import input_names
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion

Form = Literal["onnx", "triton"]
TOKENIZER_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
"""Files for a client's tokenizer and labels; those that the model has are exported too."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export, with the graph's speed on one core of this machine."""

    folder: str
    texts_per_s: float
    batch_rows: int
    """Rows of the longest texts in the fastest batch, at most the requested `batch_rows`."""


def export(version: ModelVersion, form: Form, folder: Path, *, batch_rows: int = 64) -> Exported:
    """Exports a version into a new folder, after the acceptance check of its graph.

    Args:
        version: The model version; its files must be on this machine.
        form: `onnx`, or `triton` for a model repository.
        folder: The new folder.
        batch_rows: Triton's largest batch; its preferred batch is the fastest one here.

    Raises:
        DeployError: if the folder is not empty, the task has no graph of this form, or the graph
            fails the acceptance check.
    """
    _check_task(version, form)
    if text := optional_packages.refusal("onnx-fp32"):
        raise DeployError(text)
    if folder.exists() and any(folder.iterdir()):
        raise DeployError(f"{folder} is not empty; export into a new folder")
    with tempfile.TemporaryDirectory() as work:
        factory = EngineFactory.of(version, "cpu", 1, Path(work))
        choice = _measured(version, factory)
        rows = max(1, min(batch_rows, choice.batch_tokens // version.max_length))
        place = folder if form == "onnx" else folder / version.name
        graph = place if form == "onnx" else place / "1"
        graph.mkdir(parents=True)
        for path in Path(work).glob("model.onnx*"):
            shutil.copyfile(path, graph / path.name)
    tokenizer_folder = place if form == "onnx" else place / "tokenizer"
    tokenizer_folder.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        if (Path(version.path) / name).exists():
            shutil.copyfile(Path(version.path) / name, tokenizer_folder / name)
    if form == "triton":
        text = triton_config(version, input_names(factory.tokenizer), batch_rows, rows)
        (place / "config.pbtxt").write_text(text, encoding="utf-8")
        (place / "labels.txt").write_text("\n".join(version.labels) + "\n", encoding="utf-8")
    return Exported(str(folder), choice.texts_per_s, rows)


def triton_config(
    version: ModelVersion, inputs: list[str], most_rows: int, preferred_rows: int
) -> str:
    """Returns the `config.pbtxt` of a model repository. Source: Triton's model_config.proto."""
    ports = ",\n".join(
        f'  {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }}' for name in inputs
    )
    labels = len(version.labels)
    output = f'dims: [ {labels} ] label_filename: "labels.txt"'
    if Head.of(task_registry.find(version.task)).is_per_token:
        output = f"dims: [ -1, {labels} ]"
    return f"""\
name: {json.dumps(version.name)}
backend: "onnxruntime"
max_batch_size: {most_rows}
input [
{ports}
]
output [
  {{ name: "logits" data_type: TYPE_FP32 {output} }}
]
dynamic_batching {{ preferred_batch_size: [ {preferred_rows} ] max_queue_delay_microseconds: 0 }}
instance_group [ {{ count: 1 kind: KIND_AUTO }} ]
parameters {{ key: "version" value: {{ string_value: {json.dumps(version.id)} }} }}
parameters {{ key: "max_length" value: {{ string_value: "{version.max_length}" }} }}
"""


def _check_task(version: ModelVersion, form: Form) -> None:
    """Raises DeployError if models of a version's task have no graph of a form."""
    if not endpoint_of(version.task).is_exportable:
        raise DeployError(
            f"{version.name} is a model for {version.task}, which has no graph export; other"
            f" servers can read it from {version.path} as it is"
        )
    if form == "triton" and Head.of(task_registry.find(version.task)).is_per_hidden:
        raise DeployError(
            f"{version.name} is a model for {version.task}, whose graph has an input that Triton"
            " cannot batch, the places of hidden tokens; export it as onnx"
        )


def _measured(version: ModelVersion, factory: EngineFactory) -> Choice:
    """Runs the acceptance check on the ONNX graph and measures its throughput.

    Raises:
        DeployError: if the version has no evaluation sample or the graph fails the check.
    """
    sample = eval_sample_of(version)
    if not sample.rows:
        raise DeployError(
            f"{version.name} {version.id} has no evaluation sample, which the check of the exported"
            " graph needs; publish the model again"
        )
    choice = selection.choose(factory, ("onnx-fp32",), sample)
    refusal = choice.trials[0].refusal
    if refusal:
        raise DeployError(f"the graph of {version.name} fails the acceptance check: {refusal}")
    return choice
