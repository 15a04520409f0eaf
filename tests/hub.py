"""A stand-in for the Hugging Face Hub's API, over HTTP on this machine."""

import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastapi
import uvicorn

TOKEN = "hf_" + "a" * 34
LARGE = (".safetensors", ".bin")
"""Endings of files that are sent to the store of large files."""


@dataclass
class Repository:
    """Files by path, and the summaries of the commits."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    revision: str = "0" * 40
    """The newest commit."""
    earlier: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of other commits."""

    def change(self, **contents: bytes) -> None:
        """Makes a commit, outside of the API, with other contents of some files."""
        self.earlier[self.revision] = self.files
        self.revision = f"{len(self.earlier):040x}"
        self.files = {**self.files, **contents}

    def at(self, revision: str) -> tuple[str, dict[str, bytes] | None]:
        """The commit that a branch or commit names, and its files; None where there is no such."""
        if revision in ("main", self.revision):
            return self.revision, self.files
        return revision, self.earlier.get(revision)


@dataclass
class Hub:
    """What the stand-in knows, and how it is to fail."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    user: dict[str, Any] = field(
        default_factory=lambda: {
            "type": "user",
            "name": "ann",
            "orgs": [{"name": "team"}],
            "auth": {"accessToken": {"role": "write"}},
        }
    )
    fails_commits: bool = False
    """Whether commits are answered with 503."""


@contextlib.contextmanager
def served() -> Iterator[Hub]:
    """The stand-in on a port of this machine."""
    hub = Hub()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hub.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(application(hub), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join()


def application(hub: Hub) -> fastapi.FastAPI:
    """Its routes."""
    api = fastapi.FastAPI()

    @api.middleware("http")
    async def authorised(request: fastapi.Request, call: Any) -> fastapi.Response:
        is_store = request.url.path.startswith("/store/")
        if not is_store and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return fastapi.responses.JSONResponse({"error": "Invalid credentials"}, 401)
        if hub.fails_commits and "/commit/" in request.url.path:
            return fastapi.responses.JSONResponse({"error": "Try again later"}, 503)
        answer: fastapi.Response = await call(request)
        return answer

    _add_repositories(api, hub)
    _add_reading(api, hub)
    _add_files(api, hub)
    return api


def _add_repositories(api: fastapi.FastAPI, hub: Hub) -> None:
    @api.get("/api/whoami-v2")
    def whoami() -> dict[str, Any]:
        return hub.user

    @api.post("/api/repos/create")
    async def create(request: fastapi.Request) -> fastapi.Response:
        body = await request.json()
        name = f"{body.get('organization') or 'ann'}/{body['name']}"
        if name in hub.repositories:
            answer = {"error": "You already created it", "url": f"{hub.url}/{name}"}
            return fastapi.responses.JSONResponse(answer, 409)
        is_private = body.get("private") or body.get("visibility") == "private"
        hub.repositories[name] = Repository(bool(is_private))
        return fastapi.responses.JSONResponse({"url": f"{hub.url}/{name}"})

    @api.get("/api/models/{owner}/{name}")
    def info(owner: str, name: str) -> fastapi.Response:
        return _about(hub, f"{owner}/{name}")

    @api.get("/api/models/{owner}/{name}/revision/{revision}")
    def revision(owner: str, name: str, revision: str) -> fastapi.Response:
        return _about(hub, f"{owner}/{name}", revision)

    @api.get("/api/models/{owner}/{name}/tree/{revision}")
    def tree(owner: str, name: str, revision: str) -> list[dict[str, Any]]:
        _, files = hub.repositories[f"{owner}/{name}"].at(revision)
        return [
            {"type": "file", "path": path, "size": len(content), "oid": oid(path, content)}
            for path, content in (files or {}).items()
        ]

    @api.post("/api/validate-yaml")
    def validate() -> dict[str, Any]:
        return {"errors": [], "warnings": []}


def _about(hub: Hub, name: str, revision: str = "main") -> fastapi.Response:
    known = hub.repositories.get(name)
    commit, files = known.at(revision) if known else ("", None)
    if known is None or files is None:
        headers = {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"}
        return fastapi.responses.JSONResponse({"error": "not found"}, 404, headers)
    names = [{"rfilename": path} for path in files]
    about = {"id": name, "private": known.private, "siblings": names, "sha": commit, "tags": []}
    return fastapi.responses.JSONResponse(about)


def _add_reading(api: fastapi.FastAPI, hub: Hub) -> None:
    @api.get("/api/models/{owner}/{name}/tree/{revision}/{folder:path}")
    def no_folder(owner: str, name: str, revision: str, folder: str) -> fastapi.Response:
        return fastapi.Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})

    @api.api_route("/{owner}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    def resolve(owner: str, name: str, revision: str, path: str) -> fastapi.Response:
        known = hub.repositories.get(f"{owner}/{name}")
        commit, files = known.at(revision) if known else ("", None)
        if files is None or path not in files:
            missing = "RepoNotFound" if known is None else "RevisionNotFound"
            missing = missing if files is None else "EntryNotFound"
            return fastapi.Response(status_code=404, headers={"X-Error-Code": missing})
        content = files[path]
        headers = {"ETag": f'"{oid(path, content)}"', "X-Repo-Commit": commit}
        return fastapi.Response(content, headers=headers)


def _add_files(api: fastapi.FastAPI, hub: Hub) -> None:
    @api.post("/api/models/{owner}/{name}/preupload/main")
    async def preupload(owner: str, name: str, request: fastapi.Request) -> dict[str, Any]:
        known = hub.repositories[f"{owner}/{name}"].files
        paths = [each["path"] for each in (await request.json())["files"]]
        return {
            "files": [
                {
                    "path": path,
                    "uploadMode": "lfs" if path.endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                    "oid": oid(path, known[path]) if path in known else None,
                }
                for path in paths
            ]
        }

    @api.post("/{owner}/{name}.git/info/lfs/objects/batch")
    async def batch(request: fastapi.Request) -> dict[str, Any]:
        objects = []
        for each in (await request.json())["objects"]:
            action = {"upload": {"href": f"{hub.url}/store/{each['oid']}", "header": {}}}
            has = each["oid"] in hub.large
            objects.append({**each, **({} if has else {"actions": action})})
        return {"transfer": "basic", "objects": objects}

    @api.put("/store/{key}")
    async def store(key: str, request: fastapi.Request) -> dict[str, Any]:
        content = await request.body()
        assert hashlib.sha256(content).hexdigest() == key
        hub.large[key] = content
        return {}

    @api.post("/api/models/{owner}/{name}/commit/main")
    async def commit(owner: str, name: str, request: fastapi.Request) -> dict[str, Any]:
        known = hub.repositories[f"{owner}/{name}"]
        for line in (await request.body()).splitlines():
            _apply(json.loads(line), known, hub)
        made = len(known.commits)
        url = f"{hub.url}/{owner}/{name}/commit/{made:040x}"
        return {"commitUrl": url, "commitOid": f"{made:040x}", "pullRequestUrl": None}


def _apply(entry: dict[str, Any], known: Repository, hub: Hub) -> None:
    """Make one change of a commit."""
    value = entry["value"]
    match entry["key"]:
        case "header":
            known.commits.append(value["summary"])
        case "file":
            known.files[value["path"]] = base64.b64decode(value["content"])
        case "lfsFile":
            known.files[value["path"]] = hub.large[value["oid"]]
        case "deletedFile":
            del known.files[value["path"]]


def oid(path: str, content: bytes) -> str:
    """Id of a file: of its blob in git, or of its content in the store of large files."""
    if path.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
