"""Engines whose packages are not installed are left out or refused, in a sentence."""

import importlib
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import DeployError, JobFileError
from orchestrator import preflight
from serve.batching.rows import Tokenizer
from serve.config import ReplicaConfig
from serve.engines import engine_factory, optional_packages, selection, startup
from serve.engines.engine_factory import EngineFactory
from serve.tools.export import export
from serve.version import ModelVersion
from tests.builders import MINILM, job

ALL = (
    "serve.engine: auto leaves out openvino-int8, openvino-bf16, openvino-fp32 and onnx-fp32"
    " without openvino, nncf, onnxruntime and onnx; pip install 'raywinnow[cpu-engines]'"
)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself finds none of the packages, as where they are not installed."""
    for needed in optional_packages.NEEDS.values():
        for package in needed:
            monkeypatch.setitem(sys.modules, package, None)
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(package)


def test_installed_engines_are_all_tried(version: ModelVersion) -> None:
    assert startup.engines_for(ReplicaConfig(version)) == selection.CPU_ENGINES
    assert optional_packages.left_out(optional_packages.NEEDS) == ""
    assert preflight.remarks(job(serve={"route": "/a"})) == ()


@pytest.mark.usefixtures("hidden")
def test_auto_serves_with_torch_and_says_what_it_leaves_out(
    version: ModelVersion, caplog: pytest.LogCaptureFixture
) -> None:
    own = replace(version, id="without")  # with a folder of its own for what is remembered
    factory, sample = EngineFactory.of(own, "cpu", 1), engine_factory.eval_sample_of(own)
    with caplog.at_level(logging.WARNING):
        choice, engine = startup.prepare(ReplicaConfig(own), factory, sample)
    assert [trial.engine for trial in choice.trials] == ["torch-bf16", "torch-fp32"]
    assert engine.name == choice.engine
    assert [record.getMessage() for record in caplog.records] == [ALL]


@pytest.mark.usefixtures("hidden")
def test_a_plan_names_engines_that_auto_leaves_out() -> None:
    assert preflight.remarks(job(serve={"route": "/a"})) == (ALL,)
    (some,) = preflight.remarks(job(serve={"route": "/a", "precision": "bf16"}))
    assert "leaves out openvino-bf16 without openvino;" in some
    assert preflight.remarks(job(serve={"route": "/a", "engine": "torch-fp32"})) == ()
    assert preflight.remarks(job(serve={"route": "/a", "accelerators": "T4:1"})) == ()
    assert preflight.remarks(job()) == ()


@pytest.mark.usefixtures("hidden")
def test_a_named_engine_without_its_packages_is_refused_while_planning() -> None:
    spec = job(model__base=MINILM, serve={"route": "/a", "engine": "onnx-fp32"})
    with pytest.raises(JobFileError) as caught:
        preflight.check(spec)
    assert [f"{found.path}: {found.message}" for found in caught.value.problems] == [
        "serve.engine: needs the package onnxruntime; pip install 'raywinnow[cpu-engines]'",
        "serve.engine: needs the package onnx; pip install 'raywinnow[cpu-engines]'",
    ]


@pytest.mark.usefixtures("hidden")
def test_making_or_exporting_without_the_packages_is_refused(
    version: ModelVersion, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(Path(version.path), version.max_length)
    maker = EngineFactory(Path(version.path), tmp_path, tokenizer, "cpu", 1)
    with pytest.raises(DeployError, match="openvino-int8 needs openvino and nncf; pip install"):
        maker.make("openvino-int8", engine_factory.EvalSample((), ()))
    with pytest.raises(DeployError, match="onnx-fp32 needs onnxruntime and onnx; pip install"):
        export(version, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
