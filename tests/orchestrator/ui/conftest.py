"""A storage that all tests of the dashboard's answers read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orchestrator.ui import stored
from tests.orchestrator.ui.stored import Stored


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A storage with runs in every state, on a machine without a cluster."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with stored.everything(tmp_path) as found:
        yield found
