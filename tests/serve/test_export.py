"""Exported graphs give the model's answers, and the Triton repository is valid."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import transformers
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from jobs.errors import DeployError
from serve.batching.rows import Tokenizer
from serve.engines.engine_factory import EngineFactory
from serve.engines.torch_engine import TorchEngine
from serve.tools.export import export, triton_config
from serve.version import ModelVersion

TEXTS = ["a superb film", "dreadful, dreadful and dull", "it is"]


def test_an_onnx_graph_with_its_tokenizer_scores_as_the_model(
    version: ModelVersion, tmp_path: Path
) -> None:
    before = sorted(Path(version.exports).glob("*"))
    made = export(version, "onnx", tmp_path / "out")
    assert sorted(Path(version.exports).glob("*")) == before  # what endpoints remember stays
    assert made.texts_per_s > 0
    folder = tmp_path / "out"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    encoded = tokenizer(TEXTS, padding=True, return_tensors="np")
    names = [port.name for port in session.get_inputs()]
    (logits,) = session.run(None, {name: encoded[name].astype(np.int64) for name in names})
    own = Tokenizer(Path(version.path), version.max_length)
    expected = TorchEngine(Path(version.path), own, "fp32", "cpu", 1).run(
        own.rows([(text,) for text in TEXTS])
    )
    assert logits == pytest.approx(expected, abs=1e-4)


def test_a_triton_repository_is_what_triton_reads(version: ModelVersion, tmp_path: Path) -> None:
    made = export(version, "triton", tmp_path / "repository", batch_rows=16)
    model = tmp_path / "repository" / version.name
    config = text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert config.name == version.name
    assert config.max_batch_size == 16
    assert list(config.dynamic_batching.preferred_batch_size) == [made.batch_rows]
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    session = onnxruntime.InferenceSession(model / "1" / "model.onnx")
    assert [port.name for port in config.input] == [port.name for port in session.get_inputs()]
    assert [port.name for port in config.output] == [port.name for port in session.get_outputs()]
    (labels,) = {port.dims[0] for port in config.output}
    names = (model / config.output[0].label_filename).read_text(encoding="utf-8").split()
    assert len(names) == labels == len(version.labels)
    assert (model / "tokenizer" / "tokenizer.json").exists()


@pytest.mark.parametrize(("right", "wrong"), [("TYPE_FP32", "FP32"), ("dims:", "shape:")])
def test_a_planted_mistake_is_none_of_triton_s_words(
    right: str, wrong: str, version: ModelVersion
) -> None:
    text = triton_config(version, ["input_ids"], 8, 4)
    text_format.Parse(text, model_config_pb2.ModelConfig())
    with pytest.raises(text_format.ParseError):
        text_format.Parse(text.replace(right, wrong), model_config_pb2.ModelConfig())


def test_what_cannot_be_exported_is_refused(
    version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    with pytest.raises(DeployError, match="is not empty"):
        export(version, "onnx", tmp_path)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"

    class Astray(TorchEngine):
        """An engine with the opposite logits."""

        def run(self, rows):  # type: ignore[no-untyped-def]
            """Returns negated logits."""
            return -super().run(rows)

    def make(self, name, sample):  # type: ignore[no-untyped-def]
        kind = Astray if name == "onnx-fp32" else TorchEngine
        return kind(self.model, self.tokenizer, "fp32", "cpu", 1)

    monkeypatch.setattr(EngineFactory, "make", make)
    with pytest.raises(DeployError, match="fails the acceptance check"):
        export(version, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
