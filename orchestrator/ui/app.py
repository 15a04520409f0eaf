"""The dashboard's application: a JSON API over the records of a storage, and its page."""

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import fastapi.staticfiles
import pydantic_core

import raywinnow
from jobs.errors import RunError, StorageError, WinnowError
from jobs.storage.storage import Storage
from orchestrator.records import comparison, lineage, runs
from orchestrator.ui import live, run_page, watching
from orchestrator.ui.access import Tokens
from orchestrator.ui.guard import Guard
from orchestrator.ui.listing import RunList
from orchestrator.ui.live import Follower
from orchestrator.ui.operations import Kind, Operations, Place
from orchestrator.ui.watching import Watch
from serve.http.auth import Owner

COMPARED = 8
"""Most runs that are compared."""
NAME = r"^[a-z0-9][a-z0-9-]*$"
Model = Annotated[str, fastapi.Path(pattern=NAME)]
Version = Annotated[str, fastapi.Path(pattern=r"^[0-9a-f]{12}$")]
RunId = Annotated[str, fastapi.Path(pattern=NAME)]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What the routes of a dashboard share."""

    storage: Storage
    listing: RunList
    follower: Follower
    watch: Watch
    operations: Operations


def create_application(
    storage: Storage,
    place: Place,
    tokens: Tokens,
    names: frozenset[str],
    watch: Watch | None = None,
) -> Guard:
    """Returns the ASGI application of a dashboard.

    Args:
        storage: Its runs and models are shown.
        place: Where its commands act.
        tokens: Those that are accepted.
        names: Names of hosts under which it may be reached.
        watch: What observes the cluster; by default a process at `place`.
    """
    return Guard(routes_of(storage, place, watch), tokens, names)


def routes_of(storage: Storage, place: Place, watch: Watch | None = None) -> fastapi.FastAPI:
    """Returns the routes alone, which `Guard` has to protect."""
    dashboard = Dashboard(
        storage=storage,
        listing=RunList(storage),
        follower=Follower(storage),
        watch=watch or Watch(place),
        operations=Operations(place),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=_read_first, args=(dashboard.listing,), daemon=True).start()
        yield
        dashboard.operations.close()
        dashboard.watch.close()

    api = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    api.exception_handler(WinnowError)(_on_error)
    api.exception_handler(fastapi.exceptions.RequestValidationError)(_on_invalid)
    api.exception_handler(Exception)(_on_bug)
    _add_runs(api, dashboard)
    _add_models(api, dashboard)
    _add_changes(api, dashboard)
    api.mount("/", fastapi.staticfiles.StaticFiles(packages=[(__package__, "pages")], html=True))
    return api


def _add_runs(api: fastapi.FastAPI, on: Dashboard) -> None:
    """Adds the routes that show runs."""

    @api.get("/api/runs")
    def every_run() -> fastapi.Response:
        return _json(on.listing.every())

    @api.get("/api/runs/{identity}")
    def one_run(identity: RunId) -> fastapi.Response:
        run = runs.find(on.storage, identity)
        return _json(run_page.page_of(run, on.follower.said(run), datetime.now(UTC)))

    @api.get("/api/runs/{identity}/events")
    def events(identity: RunId, after: Annotated[int, fastapi.Query(ge=0)] = 0) -> fastapi.Response:
        stream = live.events(on.follower, runs.find(on.storage, identity), after)
        return fastapi.responses.StreamingResponse(stream, media_type="text/event-stream")

    @api.get("/api/compare")
    def compare(run: Annotated[Sequence[str], fastapi.Query()]) -> fastapi.Response:
        if not 2 <= len(run) <= COMPARED:
            raise RunError(f"{len(run)} runs cannot be compared; name 2 to {COMPARED}")
        return _json(
            comparison.compare([comparison.profile(runs.find(on.storage, each)) for each in run])
        )


def _add_models(api: fastapi.FastAPI, on: Dashboard) -> None:
    """Adds the routes that show models and the cluster, and who asks."""

    @api.get("/api/me")
    def me(request: fastapi.Request) -> fastapi.Response:
        owner: Owner = request.scope["owner"]
        place = {"storage": str(on.storage), "version": raywinnow.version()}
        return _json({"name": owner.name, "scope": owner.scope, **place})

    @api.get("/api/models")
    def models() -> fastapi.Response:
        return _json(lineage.every(on.storage))

    @api.get("/api/models/{name}/{version}")
    def model(name: Model, version: Version) -> fastapi.Response:
        return _json(lineage.lineage(on.storage, name, version))

    @api.get("/api/cluster")
    def cluster() -> fastapi.Response:
        return _json(on.watch.look())

    @api.get("/api/cluster/events")
    def cluster_events() -> fastapi.Response:
        stream = watching.events(on.watch)
        return fastapi.responses.StreamingResponse(stream, media_type="text/event-stream")

    @api.get("/api/operations")
    def operations() -> fastapi.Response:
        return _json(on.operations.recent())


def _add_changes(api: fastapi.FastAPI, on: Dashboard) -> None:
    """Adds the routes that change something, which take a token of scope operate."""

    def begin(request: fastapi.Request, kind: Kind, target: str) -> fastapi.Response:
        owner: Owner = request.scope["owner"]
        return _json(on.operations.begin(kind, target, owner.name), 202)

    @api.post("/api/runs/{identity}/cancel")
    def cancel(request: fastapi.Request, identity: RunId) -> fastapi.Response:
        return begin(request, "cancel", identity)

    @api.post("/api/models/{name}/{version}/promote")
    def promote(request: fastapi.Request, name: Model, version: Version) -> fastapi.Response:
        return begin(request, "promote", f"{name}@{version}")

    @api.post("/api/models/{name}/rollback")
    def rollback(request: fastapi.Request, name: Model) -> fastapi.Response:
        return begin(request, "rollback", name)

    @api.post("/api/endpoints/{name}/undeploy")
    def undeploy(request: fastapi.Request, name: Model) -> fastapi.Response:
        return begin(request, "undeploy", name)


def _json(value: Any, status: int = 200) -> fastapi.Response:
    """Returns a value as JSON; numbers that are not finite become null."""
    body = pydantic_core.to_json(value, inf_nan_mode="null")
    return fastapi.Response(body, status, media_type="application/json")


def _on_error(_: fastapi.Request, error: Exception) -> fastapi.Response:
    status = 503 if isinstance(error, StorageError) else 404
    return _json({"error": str(error)}, status)


def _on_invalid(_: fastapi.Request, error: Exception) -> fastapi.Response:
    assert isinstance(error, fastapi.exceptions.RequestValidationError)
    names = ", ".join(str(each["loc"][-1]) for each in error.errors())
    return _json({"error": f"{names} of the request is not valid"}, 422)


def _on_bug(_: fastapi.Request, error: Exception) -> fastapi.Response:
    return _json({"error": f"{type(error).__name__}; this is a bug, see the log of winnow ui"}, 500)


def _read_first(listing: RunList) -> None:
    """Read the runs before the first browser asks for them."""
    with contextlib.suppress(WinnowError):  # the browser is told
        listing.every()
