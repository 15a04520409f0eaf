"""What `winnow models show` tells of the engines that were tried for a version."""

import json
from pathlib import Path

import pytest

from orchestrator.cli import models
from serve.version import CHOICE_FILE, ModelVersion


def test_a_version_is_shown_with_the_engines_that_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = ModelVersion(
        "reviews", "0a1b", str(tmp_path / "0a1b"), ("no", "yes"), is_pair=False, max_length=32
    )
    monkeypatch.setattr(models.registry, "read", lambda *_: version)
    trials = [
        {"engine": "onnx-fp32", "refusal": "", "texts_per_s": 50.4},
        {"engine": "torch-bf16", "refusal": "it is not checked: 6 texts/s", "texts_per_s": 6.0},
    ]
    place = Path(version.exports) / CHOICE_FILE
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"choice": {"engine": "onnx-fp32", "trials": trials}}))
    models.show("reviews", storage=str(tmp_path))
    shown = capsys.readouterr().out.splitlines()
    assert shown[-3:] == [
        "engine   onnx-fp32",
        "tried    onnx-fp32      50 texts/s",
        "tried    torch-bf16     it is not checked: 6 texts/s",
    ]
    place.write_text('{"choice": null}')
    models.show("reviews", storage=str(tmp_path))
    assert "engine" not in capsys.readouterr().out
