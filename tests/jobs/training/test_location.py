"""Base models from a folder in S3."""

import json
import shutil
from pathlib import Path

import pytest
import transformers

from jobs.errors import ModelError
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.storage.bucket import BucketObjects
from jobs.training.model import location
from jobs.training.model.base import load_model, load_tokenizer
from jobs.training.model.counting import shape_of
from tests import tiny


@pytest.fixture
def base(bucket: str, tiny_model: str) -> str:
    """The tiny model in S3, with a file that must not be fetched."""
    objects = BucketObjects(f"{bucket}/base")
    for path in Path(tiny_model).iterdir():
        objects.write(path.name, path.read_bytes())
    objects.write("pytorch_model.bin", b"pickled")
    return f"{bucket}/base"


def test_a_model_from_s3_is_the_one_from_the_folder(base: str, tiny_model: str) -> None:
    assert shape_of(base) == shape_of(tiny_model)
    folder = location.locate(base, has_weights=False)
    assert isinstance(folder, Path)
    assert not list(folder.glob("*.safetensors"))  # planning needs none
    mine = load_model(ModelSpec(base=base), ("a", "b")).model.state_dict()
    theirs = load_model(ModelSpec(base=tiny_model), ("a", "b")).model.state_dict()
    kept = [name for name in mine if "classifier" not in name]
    assert all(mine[name].equal(theirs[name]) for name in kept)
    assert load_tokenizer(base)("fine").input_ids == load_tokenizer(tiny_model)("fine").input_ids
    assert location.locate(base) == folder
    assert sorted(path.suffix for path in folder.iterdir() if path.suffix == ".bin") == []


def test_the_digest_of_weights_is_that_of_the_files_that_are_loaded(
    tiny_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    whole = location.weights_digest(folder)
    (folder / "consolidated.safetensors").write_bytes(b"the same in another format")
    assert location.weights_digest(folder) == whole
    assert load_model(ModelSpec(base=tiny_model), ("a", "b")).weights == whole
    (folder / location.WHOLE).unlink()
    assert location.weights_digest(folder) == ""
    model = transformers.AutoModel.from_pretrained(tiny_model)
    model.save_pretrained(folder, max_shard_size="100KB")
    shards = location.weights_digest(folder)
    last = max(folder.glob("model-*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    assert len({whole, shards, location.weights_digest(folder)}) == 3


def test_the_digest_of_large_files_has_samples_of_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "SMALL", 2**18)
    monkeypatch.setattr(location, "SAMPLE_EVERY", 2**16)
    found, place = set(), tmp_path / location.WHOLE
    for changed in range(17):  # the last is none of them
        pieces = [b"?" if piece == changed else b"." for piece in range(16)]
        place.write_bytes(b"".join(2**16 * piece for piece in pieces))
        found.add(location.weights_digest(tmp_path))
    assert len(found) == 17


def test_a_changed_model_is_fetched_again(base: str) -> None:
    before = location.locate(base, has_weights=False)
    objects = BucketObjects(base)
    config = objects.read("config.json")
    assert config
    objects.write("config.json", config.content + b"\n")
    after = location.locate(base, has_weights=False)
    assert after != before
    assert (Path(after) / "config.json").read_bytes() == config.content + b"\n"


def test_a_file_that_is_deleted_meanwhile_is_named(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = BucketObjects(base)
    objects.write("added_tokens.json", b"{}")
    listed = list(objects.entries(""))
    objects.delete("added_tokens.json")
    monkeypatch.setattr(BucketObjects, "entries", lambda *_: iter(listed))
    with pytest.raises(ModelError, match=r"added_tokens\.json of s3://.* was deleted meanwhile"):
        location.locate(base)


def test_a_folder_without_a_model_is_refused(bucket: str) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        location.locate(f"{bucket}/nothing")
    with pytest.raises(ModelError, match="cannot be listed"):
        location.locate("s3://no-such-bucket-here/x")


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("bert", "text-classification"),
        ("albert", "text-classification"),
        ("t5", "text-classification"),
        ("xlnet", "text-classification"),
        ("bart", "text-classification"),
        ("llama", "causal-lm"),
        ("gpt2", "causal-lm"),
        ("gemma2", "causal-lm"),
        ("mixtral", "causal-lm"),
        ("qwen2_moe", "causal-lm"),
        ("bloom", "causal-lm"),
    ],
)
def test_weights_are_counted_without_loading_them(kind: str, task: str, tmp_path: Path) -> None:
    auto = transformers.AutoModelForSequenceClassification
    if task == "causal-lm":
        auto = transformers.AutoModelForCausalLM
    base = tiny.save(tmp_path / kind, kind, auto)
    model = auto.from_pretrained(base)
    true = sum(parameter.numel() for parameter in model.parameters())
    shape = shape_of(base, task_registry.find(task))
    assert shape is not None
    assert shape.parameters == pytest.approx(true, rel=0.005)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": "many"},
        {"hidden_size": float("inf")},
        {"num_hidden_layers": 2.5},
        {"vocab_size": None},
        {"vocab_size": -1},
        {"model_type": "albert", "num_attention_heads": 0},
        {"model_type": "albert", "hidden_act": 5},
        {"model_type": 5},
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_model_has_no_size(
    fields: dict[str, object], tmp_path: Path
) -> None:
    whole = tiny.config_of("bert").to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**whole, **fields}), encoding="utf-8")
    assert shape_of(str(tmp_path)) is None


def test_odd_values_beside_the_sizes_are_passed_over(tmp_path: Path) -> None:
    odd = {"intermediate_size": [1], "num_key_value_heads": "x", "max_position_embeddings": "x"}
    whole = tiny.config_of("bert").to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**whole, **odd}), encoding="utf-8")
    shape = shape_of(str(tmp_path))
    assert shape is not None
    assert (shape.intermediate, shape.key_value_share, shape.positions) == (128, 1.0, 0)
