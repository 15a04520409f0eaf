"""What is brought into the caches of a machine before its workers ask for it."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import transformers

from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef
from orchestrator.notices import Notice, Progress
from orchestrator.prefetching import Prefetching
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from tests.builders import eventually, job
from tests.hub import TOKEN, Repository, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
FILL = """
import sys
import threading
from pathlib import Path
import transformers
from jobs.training import prefetch
from tests.builders import training_config

told = []
for name in sys.argv[2:]:
    config = training_config(Path(sys.argv[1]), name)
    prefetch.load_modules(config)
    prefetch.fill(config, lambda *done: told.append(done))
    transformers.AutoModel.from_pretrained(name, local_files_only=True)
print(told)
"""


def test_a_base_on_the_hub_is_fetched_as_it_is_loaded_and_rows_are_tokenised(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Weights in another format beside them are not fetched; one has its weights in pieces."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "model.safetensors").unlink()
    model = transformers.AutoModel.from_pretrained(tiny_model)
    model.save_pretrained(folder, max_shard_size="100KB")
    pieces = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights = {name for name in pieces if name.endswith(".safetensors")}
    assert len(weights) > 1
    with served() as hub:
        other = {"consolidated.safetensors": b"large", "original/a.safetensors": b"large"}
        for name, files in (("team/whole", whole), ("team/pieces", pieces)):
            hub.repositories[name] = Repository(private=False, files={**files, **other})
        own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        own |= {"WINNOW_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", FILL, str(reviews), "team/whole", "team/pieces"],
            env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('train', 160, 160), ('eval', 50, 50)]"
    found = {path.name for path in tmp_path.glob("hf/**/snapshots/*/*.safetensors")}
    assert found == {*weights, "model.safetensors"}
    assert len(list(tmp_path.glob("home/cache/tokens/*.arrow"))) == 2


def test_the_rows_of_a_run_are_tokenised_once_unless_it_is_trained(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    spec = job(
        model__base=tiny_model,
        data__train__path=str(reviews / "train.csv"),
        data__eval__path=str(reviews / "eval.csv"),
    )
    told, storage = list[Notice](), open_storage(tmp_path / "storage")
    trained, fresh = (Run(name, storage) for name in ("trained", "fresh"))
    trained.write("fit", FitResult(CheckpointRef("", 5, {}), (), 5, 1.0, 0, (), ()))
    for run in (trained, fresh):
        prefetching = Prefetching(spec, run, told.append)
        prefetching.begin()
        prefetching.begin()
    expected = {Progress("tokens train", 160, 160), Progress("tokens eval", 50, 50)}
    assert eventually(lambda: set(told) == expected)
    assert len(told) == 2
    assert eventually(lambda: len(list(tmp_path.glob("home/cache/tokens/*.arrow"))) == 2)


def test_what_goes_wrong_is_left_to_the_plan_to_tell(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    storage = open_storage(tmp_path / "storage")
    for base in (tiny_model, str(tmp_path / "no-model")):
        told = list[Notice]()
        spec = job(model__base=base, data__train__path=str(tmp_path / "gone.csv"))
        Prefetching(spec, Run("r", storage), told.append).begin()
        assert eventually(lambda: all(t.name != "prefetching" for t in threading.enumerate()))
        assert told == []
