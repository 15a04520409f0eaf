"""Where our processes import from, and what is sent with a job."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.cli import submit
from raywinnow import paths


def test_a_child_s_import_path_has_the_checkout_and_no_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONPATH": os.pathsep.join(["", str(tmp_path), "/elsewhere"]), "LANG": "C"}
    found = paths.environment(given)
    assert found == {"PYTHONPATH": f"{paths.ROOT}{os.pathsep}/elsewhere", "LANG": "C"}


def test_a_checkout_that_is_the_working_directory_stays_on_the_import_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(paths.ROOT)
    given = {"PYTHONPATH": str(paths.ROOT)}
    assert paths.environment(given) == given


def test_files_before_winnow_are_found_and_folders_without_code_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()  # with rows, such as jobs/train.csv
    (tmp_path / "cluster.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(paths.ROOT)])
    assert list(paths.shadows()) == [
        paths.Shadow(tmp_path / "cluster.py", "cluster", is_sent=False)
    ]
    monkeypatch.setattr(sys, "path", [str(paths.ROOT), str(tmp_path)])
    assert list(paths.shadows()) == []


def test_a_submitted_folder_is_sent_without_its_modules(tmp_path: Path) -> None:
    for name in ("serve.py", "jobs/__init__.py", "jobs/train.csv", "rows/deep/notes.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sent(tmp_path) == {"jobs/train.csv", "rows/deep/notes.py"}


def test_a_submitted_checkout_is_sent_with_its_modules(tmp_path: Path) -> None:
    for package in paths.PACKAGES:
        (tmp_path / package).mkdir()
        for name in ("__init__.py", "py.typed"):
            (tmp_path / package / name).touch()
    assert "serve/__init__.py" in sent(tmp_path)


def sent(folder: Path) -> set[str]:
    """What Ray packs of a folder with a job."""
    from ray._private.runtime_env import packaging

    archive = folder.parent / f"{folder.name}.zip"
    excludes = submit.excluded(folder)
    packaging.create_package(str(folder), archive, include_gitignore=False, excludes=excludes)
    with zipfile.ZipFile(archive) as packed:
        return {name for name in packed.namelist() if not name.endswith("/")}
