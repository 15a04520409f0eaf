"""The weights of a base on the hub are fetched as they are loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from jobs.training.model import location
from tests.hub import TOKEN, Repository, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
FETCH = """
import sys
from jobs.training.model import location

for name in sys.argv[1:]:
    location.fetch_from_hub(name)
assert "torch" not in sys.modules
import transformers
from huggingface_hub import constants
constants.HF_HUB_OFFLINE = True
for name in sys.argv[1:]:
    transformers.BertModel.from_pretrained(name, config=transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    ), local_files_only=True)
"""


def test_weights_in_one_file_or_several_are_fetched_and_none_in_another_format(
    tiny_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / location.WHOLE).unlink()
    model = transformers.AutoModel.from_pretrained(tiny_model)
    model.save_pretrained(folder, max_shard_size="100KB")
    pieces = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights = {name for name in pieces if name.endswith(location.WEIGHTS)}
    assert len(weights) > 1
    with served() as hub:
        other = {"consolidated.safetensors": b"large", "original/a.safetensors": b"large"}
        for name, files in (("team/whole", whole), ("team/pieces", pieces)):
            hub.repositories[name] = Repository(private=False, files={**files, **other})
        own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        done = subprocess.run(
            [sys.executable, "-c", FETCH, "team/whole", "team/pieces"],
            env={**os.environ, **own, "HF_HUB_DISABLE_XET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = {path.name for path in tmp_path.glob("hf/**/snapshots/*/*.safetensors")}
    assert found == {*weights, location.WHOLE}


@pytest.mark.parametrize("base", ["{tiny}", "s3://bucket/model"])
def test_a_base_elsewhere_is_left_to_who_loads_it(
    base: str, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    location.fetch_from_hub(base.format(tiny=tiny_model))
