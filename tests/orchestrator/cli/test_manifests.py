"""`winnow manifests` from a job file to folders."""

import json
from pathlib import Path

from tests.commands import call as winnow

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "sst2-bert.yaml"
IMAGE = ("--image", "registry.example/winnow@sha256:" + "0" * 64)


def test_an_example_becomes_folders_to_apply(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    words = ("manifests", str(EXAMPLE), *IMAGE, "--set", "storage=s3://team/winnow")
    done = winnow(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "kubectl apply -k k8s/job" in done.stdout
    assert "kubectl apply -k k8s/endpoint" in done.stdout
    found = json.loads(winnow(tmp_path, *words, "--json").stdout)["files"]
    assert len(found) == 11
    for name in found:
        assert (tmp_path / "k8s" / name).read_text().startswith("apiVersion: ")


def test_a_place_of_this_machine_is_refused_and_nothing_written(tmp_path: Path) -> None:
    done = winnow(tmp_path, "manifests", str(EXAMPLE), *IMAGE)
    assert done.returncode == 1
    assert "storage ./.winnow is a path of this machine" in done.stderr
    assert not (tmp_path / "k8s").exists()
