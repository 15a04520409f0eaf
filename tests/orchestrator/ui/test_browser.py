"""The dashboard in a real browser: what is seen, done by keyboard, and refused."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.records import cancellation, runs
from orchestrator.ui import watching
from orchestrator.ui.live import LOOK_S
from orchestrator.ui.watching import Watch
from tests.builders import eventually
from tests.orchestrator.ui import observing, stored
from tests.orchestrator.ui.browsing import Page
from tests.orchestrator.ui.shown import Dashboard, answering, browse

pytestmark = pytest.mark.browser

AXE = Path(__file__).with_name("axe.min.js")
VIEWS = ((1280, 900, "light"), (390, 844, "dark"))
GRAVE = ("serious", "critical")


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    """A dashboard with the tokens `read` and `operate`, on a machine without a cluster."""
    with answering(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def beside_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    """The same, beside a cluster that serves, trains, and has owners and hosts with odd names."""
    with answering(tmp_path, monkeypatch, observing.busy) as found:
        yield found


def test_every_page_is_whole_and_accessible_in_both_sizes_and_schemes(
    dashboard: Dashboard,
) -> None:
    have = dashboard.stored
    compared = "&".join(f"run={each}" for each in have.completed)
    pages = {
        "runs": have.failed,
        f"runs/{have.completed[0]}": "receipt of",
        f"runs/{have.running}": "step 5: accuracy 0.8000",
        f"compare?{compared}": "What differs",
        "models": f"reviews@{have.versions[0]}",
        f"models/reviews/{have.versions[0]}": "Deployments of the model",
        "endpoints": "No cluster is up",
        "queue": "No cluster is up",
        "devices": "No cluster is up",
    }

    async def visit(page: Page) -> None:
        for width, height, scheme in VIEWS:
            await page.resize(width, height, scheme)
            await page.go("about:blank")
            await page.go(f"{dashboard.url}/#token=operate")
            await page.see("olga")
            assert "operate" not in await page.run("location.href")
            await page.run(AXE.read_text("utf-8"))
            for path, text in pages.items():
                await page.run(f"location.hash = {json.dumps(f'#/{path}')}")
                await page.see(text)
                overflow = "document.documentElement.scrollWidth - innerWidth"
                assert await page.run(overflow) <= 0, (path, width)
                found = json.loads(await page.run("axe.run().then(JSON.stringify)"))
                assert len(found["passes"]) > 10
                grave = [each for each in found["violations"] if each["impact"] in GRAVE]
                assert grave == [], (path, width)
        assert await page.run("document.querySelectorAll('main img').length") == 0

    browse(visit)


def test_the_cluster_is_shown_live_in_both_sizes_and_schemes(beside_cluster: Dashboard) -> None:
    """Names of owners and hosts stay text."""
    old, new = beside_cluster.stored.versions[:2]
    pages = {
        "endpoints": (f"{new} answers 10% of /reviews, {old} the others", "412.6", "1.2%", "88 ms"),
        "queue": ("L40S:2", f"1 of 1: {stored.OWNER}"),
        "devices": ("2 of 2 GPUs", "0: 87%", "20.5 of 44.4 GiB", stored.OWNER, "does not answer"),
    }

    async def visit(page: Page) -> None:
        for width, height, scheme in VIEWS:
            await page.resize(width, height, scheme)
            await page.go("about:blank")
            await page.go(f"{beside_cluster.url}/#token=operate")
            await page.see("olga")
            await page.run(AXE.read_text("utf-8"))
            for path, texts in pages.items():
                await page.run(f"location.hash = '#/{path}'")
                for text in texts:
                    await page.see(text)
                overflow = "document.documentElement.scrollWidth - innerWidth"
                assert await page.run(overflow) <= 0, (path, width)
                found = json.loads(await page.run("axe.run().then(JSON.stringify)"))
                grave = [each for each in found["violations"] if each["impact"] in GRAVE]
                assert grave == [], (path, width)
                if folder := os.environ.get("WINNOW_PICTURES"):
                    Path(folder, f"{path}-{width}.png").write_bytes(await page.picture())
        assert await page.run("document.querySelectorAll('main img').length") == 0
        await page.run("location.hash = '#/endpoints'")
        buttons = "[...document.querySelectorAll('main button')].map((each) => each.textContent)"
        await page.see("Undeploy topics")
        labels = ("Roll reviews back", "Undeploy reviews", "Roll topics back", "Undeploy topics")
        assert await page.run(buttons) == list(labels)

    browse(visit)


def test_a_page_that_nobody_sees_watches_nothing(
    beside_cluster: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, streams = watching.events, list[Watch]()

    async def counted(watch: Watch) -> AsyncIterator[bytes]:
        """As many as are open are in `streams`."""
        streams.append(watch)
        try:
            async for each in events(watch):
                yield each
        finally:
            streams.pop()

    monkeypatch.setattr(watching, "events", counted)

    def turn(hidden: str) -> str:
        seen = f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}})"
        return f"{seen}; document.dispatchEvent(new Event('visibilitychange'))"

    def looks() -> bool:
        """Whether the page made the dashboard look at the cluster since the last moment."""
        return beside_cluster.watch._looked_at == beside_cluster.observing.now

    async def soon(is_so: Callable[[], bool]) -> bool:
        return await asyncio.to_thread(eventually, is_so)

    async def visit(page: Page) -> None:
        await page.go(f"{beside_cluster.url}/#token=read")
        await page.see("eve")
        await page.run("location.hash = '#/queue'")
        await page.see("L40S:2")
        beside_cluster.observing.now = 1.0
        assert await soon(looks)
        await page.run(turn("true"))
        assert await soon(lambda: not streams)
        beside_cluster.observing.now = 2.0
        await asyncio.sleep(2 * LOOK_S + 1)
        assert not looks()
        await page.run(turn("false"))
        assert await soon(looks)

    browse(visit)


def test_runs_are_filtered_sorted_chosen_and_compared(dashboard: Dashboard) -> None:
    first, second = dashboard.stored.completed[:2]

    async def visit(page: Page) -> None:
        await page.go(f"{dashboard.url}/#token=read")
        await page.see("5 of 5 runs")
        await page.run("document.getElementById('filter').focus()")
        await page.ask("Input.insertText", text="bob")
        await page.see("1 of 5 runs")
        assert await page.run("document.activeElement.id") == "filter"
        await page.run("document.getElementById('filter').select()")
        await page.ask("Input.insertText", text="alice")
        await page.see("3 of 5 runs")
        await page.run("document.getElementById('by-value').click()")
        shown = "[...document.querySelectorAll('tbody th a')].map((each) => each.textContent)"
        assert await page.run(shown) == list(reversed(dashboard.stored.completed))
        for identity in (first, second):
            await page.run(f"document.getElementById('pick-{identity}').click()")
        await page.see("Compare the chosen runs")
        await page.run("[...document.links].find((a) => a.hash.startsWith('#/compare?')).click()")
        await page.see("train.optimizer.lr")
        assert await page.run("document.querySelectorAll('svg.parallel path.line').length") == 2
        other = f"run={dashboard.stored.failed}&run={dashboard.stored.running}"
        await page.run(f"location.hash = '#/compare?{other}'")
        await page.see("further fields are in the table")
        axes = "[...document.querySelectorAll('svg.parallel g > title')].map((e) => e.textContent)"
        named = await page.run(axes)
        assert len(named) == len(set(named)) == 12  # without metrics too

    browse(visit)


def test_a_run_is_followed_and_cancelled_by_keyboard(dashboard: Dashboard) -> None:
    have = dashboard.stored
    run = runs.find(have.storage, have.running)
    focused = "document.activeElement.textContent"

    async def visit(page: Page) -> None:
        await page.go(f"{dashboard.url}/#token=operate")
        await page.see(have.running)
        await page.run(f"location.hash = '#/runs/{have.running}'")
        await page.see("loss from 1.0000 at 1 to 0.2000 at 5")
        stored.say(run, "fit", "6/90 loss 0.1000, 100 samples/s, 2 s left")
        await page.see("6/90 loss 0.1000")
        await page.see("loss from 1.0000 at 1 to 0.1000 at 6")
        await page.run("document.querySelector('section input[type=checkbox]').click()")
        assert await page.run("document.querySelectorAll('canvas[role=img]').length") == 2
        await page.run("document.querySelector('h1').focus()")
        await page.press("Tab")
        assert await page.run(focused) == "Cancel the run"
        await page.press("Enter")
        assert await page.run(focused) == "Keep it as it is"
        await page.press("Escape")
        assert not await page.run("document.getElementById('confirm').open")
        assert await page.run(focused) == "Cancel the run"
        assert cancellation.requested(run) is None
        await page.press("Enter")
        await page.press("Tab")
        assert await page.run("document.activeElement.id") == "confirm-yes"
        await page.press("Enter")
        await page.see(f"cancel {have.running}")

    browse(visit)
    assert eventually(lambda: cancellation.requested(run) is not None, within_s=240)


def test_a_question_asked_again_at_once_is_answered(dashboard: Dashboard) -> None:
    """A browser tells that a dialog closed only with its next frame."""
    have = dashboard.stored
    run = runs.find(have.storage, have.running)
    button = f"document.getElementById('do-runs-{have.running}-cancel').click()"
    asked_again = f"{button}; document.getElementById('confirm').close(); {button}"

    async def visit(page: Page) -> None:
        await page.go(f"{dashboard.url}/#token=operate")
        await page.see(have.running)
        await page.run(f"location.hash = '#/runs/{have.running}'")
        await page.see("Cancel the run")
        await page.run(asked_again)
        await page.run("new Promise((seen) => requestAnimationFrame(() => setTimeout(seen, 100)))")
        await page.run("document.getElementById('confirm-yes').click()")
        await page.see(f"cancel {have.running}")

    browse(visit)
    assert eventually(lambda: cancellation.requested(run) is not None, within_s=240)


def test_a_reader_signs_in_and_has_no_buttons(dashboard: Dashboard) -> None:
    have = dashboard.stored

    async def visit(page: Page) -> None:
        await page.go(dashboard.url)
        await page.see("Sign in")
        assert await page.run("document.activeElement.id") == "token"
        await page.ask("Input.insertText", text="read")
        await page.press("Enter")
        await page.see("eve (may read)")
        for path, text in {
            f"runs/{have.running}": "time so far",
            f"models/reviews/{have.versions[0]}": "Deployments of the model",
        }.items():
            await page.run(f"location.hash = '#/{path}'")
            await page.see(text)
            assert await page.run("document.querySelectorAll('main button').length") == 0
        outcome = await page.run(
            f"fetch('api/runs/{have.running}/cancel', {{method: 'POST',"
            " headers: {Authorization: 'Bearer read'}}).then((answer) => answer.status)"
        )
        assert outcome == 403
        page.problems.clear()  # the console tells of the refusal

    browse(visit)


def test_a_change_that_goes_on_is_shown_to_everybody_until_its_end(dashboard: Dashboard) -> None:
    """Its command takes longer to start than a page to load."""

    async def visit(page: Page) -> None:
        await page.go(f"{dashboard.url}/#token=operate")
        await page.see("olga")
        begun = await page.run(
            "fetch('api/models/reviews/rollback', {method: 'POST',"
            " headers: {Authorization: 'Bearer operate'}}).then((answer) => answer.status)"
        )
        assert begun == 202
        await page.go("about:blank")
        await page.go(f"{dashboard.url}/#token=read")
        await page.see("rollback reviews by olga")
        await page.see("it is not recorded how reviews@")

    browse(visit)
