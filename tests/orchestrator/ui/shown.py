"""A dashboard that answers, and a browser that shows it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.tools import pictures
from orchestrator.decisions.observed import Cluster
from orchestrator.ui.access import Tokens
from orchestrator.ui.app import create_application
from orchestrator.ui.operations import Place
from orchestrator.ui.watching import Watch
from serve.http import auth
from serve.http.auth import Owner
from tests.orchestrator.ui import browsing, observing, stored
from tests.orchestrator.ui.browsing import Page
from tests.orchestrator.ui.observing import Observing
from tests.orchestrator.ui.stored import Stored
from tests.serve.live import on_socket


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard that answers, and what its storage has."""

    url: str
    stored: Stored
    observing: Observing
    watch: Watch


@contextlib.contextmanager
def answering(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Callable[[tuple[str, ...], str, str], Cluster] | None = None,
) -> Iterator[Dashboard]:
    """A dashboard on a socket; `cluster` makes what its cluster does."""
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    owners = {auth.digest("read"): Owner("eve", "read")}
    owners[auth.digest("operate")] = Owner("olga", "operate")
    with stored.everything(tmp_path) as found:
        place, names = Place(found.storage.url, tmp_path), frozenset({"127.0.0.1"})
        seen = cluster(found.versions, found.running, stored.OWNER) if cluster else None
        cluster_process = Observing([observing.line(seen)], is_up=seen is not None)
        watch = cluster_process.watch()
        tokens = Tokens(owners)
        application = create_application(found.storage, place, tokens, names, watch)
        with on_socket(application) as url:
            yield Dashboard(url, found, cluster_process, watch)
        watch.close()


def browse(visit: Callable[[Page], Awaitable[None]]) -> None:
    """Drives a page; skips where there is no browser, and fails if its console complains."""
    browser = pictures.browser()
    if browser is None:
        pytest.skip("needs chromium")

    async def drive() -> None:
        async with browsing.page(browser) as page:
            await visit(page)
            assert page.problems == []

    asyncio.run(drive())
