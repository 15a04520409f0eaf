"""Notifications, to a real HTTP server and a real mail server of this machine."""

import contextlib
import http.server
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import DeployError, JobFileError, RolloutStoppedError, RunError
from jobs.loader import loads
from jobs.spec import JobSpec
from jobs.storage.storage import open_storage
from orchestrator import notifications
from orchestrator.interruption import Terminated
from orchestrator.loading import load_job
from orchestrator.notices import Notice, Remark, Waiting
from orchestrator.records import runs
from orchestrator.records.runs import Run
from tests.builders import MINIMAL, free_port, job
from tests.commands import call

SECRET = "T00000000-hidden-word"
ALL = ["ended", "failed", "waiting", "rollout_stopped"]


class Hook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted, and refuses it on the path `/refused/...`."""

    bodies: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        """Take a body of JSON."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append((self.path, body))
        self.send_response(403 if self.path.startswith("/refused") else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server's address and what it got."""
    kind = type("Own", (Hook,), {"bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", kind.bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def mail_server(login: tuple[str, str]) -> Iterator[tuple[int, list[Any]]]:
    """A mail server's port and what it got; it knows one user."""
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult

    got: list[Any] = []

    class Keep:
        async def handle_DATA(self, _: Any, __: Any, envelope: Any) -> str:  # noqa: N802 - its name
            got.append(envelope)
            return "250 OK"

    def check(_: Any, __: Any, ___: Any, ____: Any, data: Any) -> Any:
        is_known = (data.login.decode(), data.password.decode()) == login
        return AuthResult(success=is_known, handled=False)

    port = free_port()
    controller = Controller(
        Keep(),
        hostname="127.0.0.1",
        port=port,
        authenticator=check,
        auth_require_tls=False,
        auth_required=True,
    )
    controller.start()
    try:
        yield port, got
    finally:
        controller.stop()


def begun(folder: Path, spec: JobSpec) -> Run:
    """A run in a storage of its own."""
    return runs.create(open_storage(folder / "storage"), spec, datetime(2026, 1, 2, tzinfo=UTC))


def go(
    folder: Path, spec: JobSpec, error: BaseException | None = None, *, waits: bool = False
) -> list[str]:
    """A run that ends, or fails; returns its remarks."""
    said: list[Notice] = []
    with (
        contextlib.suppress(*([type(error)] if error else [])),
        notifications.sent(spec, begun(folder, spec), said.append) as tell,
    ):
        if waits:
            tell(Waiting("waiting up to 20m for T4:1"))
        if error:
            raise error
    return [notice.text for notice in said if isinstance(notice, Remark)]


@pytest.mark.parametrize(
    ("error", "waits", "on", "events"),
    [
        (None, True, None, ["ended"]),
        (None, True, ALL, ["waiting", "ended"]),
        (None, False, ["failed"], []),
        (RunError("gone"), False, None, ["failed"]),
        (DeployError("unhealthy"), False, ["rollout_stopped"], []),
        (RolloutStoppedError("slower"), False, None, ["rollout_stopped"]),
        (RolloutStoppedError("slower"), False, ["failed"], ["failed"]),
        (Terminated(), False, ALL, []),
    ],
)
def test_a_webhook_gets_the_events_that_it_asks_for(
    error: BaseException | None,
    waits: bool,  # noqa: FBT001 - pytest names it
    on: list[str] | None,
    events: list[str],
    tmp_path: Path,
    hook: tuple[str, list[tuple[str, dict[str, Any]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOK", f"{hook[0]}/{SECRET}")
    spec = job(notify=[{"webhook": "env:HOOK", **({"on": on} if on else {})}])
    go(tmp_path, spec, error, waits=waits)
    assert [body["event"] for _, body in hook[1]] == events
    for path, body in hook[1]:
        assert path == f"/{SECRET}"
        assert (body["job"], body["run"][:17]) == ("reviews", "reviews-20260102-")
        assert str(error or "") in body["text"]


def test_slack_gets_its_kind_of_text(
    tmp_path: Path,
    hook: tuple[str, list[tuple[str, dict[str, Any]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOK", f"{hook[0]}/{SECRET}")
    assert go(tmp_path, job(notify=[{"slack": "env:HOOK"}]), RunError("no room")) == []
    ((_, body),) = hook[1]
    assert list(body) == ["text"]
    assert body["text"].startswith("*reviews has failed*\nno room\n")


@pytest.mark.filterwarnings("ignore:Requiring AUTH")  # the server has no certificate here
def test_mail_goes_out_through_a_server_that_asks_for_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = {"to": ["team@example.org", "me@example.org"], "sender": "winnow@example.org"}
    spec = job(notify=[{"email": mail}])
    with mail_server(("someone", "p@ss/word")) as (port, got):
        monkeypatch.setenv("SMTP_URL", f"smtp://someone:p%40ss%2Fword@127.0.0.1:{port}")
        assert go(tmp_path / "a", spec, RunError("no räum")) == []
        monkeypatch.setenv("SMTP_URL", f"smtp://someone:{SECRET}@127.0.0.1:{port}")
        (remark,) = go(tmp_path / "b", spec)
    (envelope,) = got
    assert envelope.rcpt_tos == mail["to"]
    content = envelope.content.decode()
    assert "Subject: reviews has failed" in content
    assert "no r=C3=A4um" in content or "no räum" in content
    assert remark.endswith("email was not told that the job ended: the mail server answered 535")
    assert SECRET not in remark


def test_what_cannot_be_sent_is_a_remark_that_shows_no_url(
    tmp_path: Path,
    hook: tuple[str, list[tuple[str, dict[str, Any]]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    urls = {
        "REFUSED": f"{hook[0]}/refused/{SECRET}",
        "NOBODY": f"http://127.0.0.1:9/{SECRET}",
        "NO_URL": SECRET,
        "MAIL": f"http://{SECRET}",
    }
    for name, value in urls.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("UNSET", raising=False)
    mail = {"to": ["a@b"], "sender": "a@b", "smtp": "env:MAIL"}
    places = [{"slack": f"env:{name}"} for name in ("REFUSED", "NOBODY", "NO_URL", "UNSET")]
    with caplog.at_level(logging.DEBUG, logger="httpx"):
        found = go(tmp_path, job(notify=[*places, {"email": mail}]))
    reasons = [each.partition("that the job ended: ")[2] for each in found]
    assert reasons == [
        "its server answered 403",
        "ConnectError",
        "UnsupportedProtocol",
        "env:UNSET is not set",
        "env:MAIL is no URL such as smtp://user:password@host:587",
    ]
    assert SECRET not in f"{found} {caplog.text}"


def test_a_url_in_a_job_file_is_used_and_written_nowhere(
    tmp_path: Path, hook: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    url = f"{hook[0]}/{SECRET}"
    spec = loads(f"{MINIMAL}notify: [{{webhook: '{url}'}}]\n")
    assert SECRET not in spec.model_dump_json() + runs.to_job_file(spec)
    again = JobSpec.model_validate(spec.model_dump(mode="json"))
    run_error = RunError(f"{url} is gone")
    assert SECRET not in str(run_error)
    assert go(tmp_path, again) == []
    assert [path for path, _ in hook[1]] == [f"/{SECRET}"]
    for path in (tmp_path / "storage").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_a_job_with_a_url_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{MINIMAL}notify: [{{webhook: 'http://{SECRET}'}}]\n", encoding="utf-8")
    with pytest.raises(JobFileError, match=r"notify\[0\]\.webhook: is a URL, which is not sent"):
        load_job(path, is_elsewhere=True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{}", "names none; each entry of notify has one of slack, webhook, email"),
        ("{slack: env:A, webhook: env:B}", "names slack and webhook"),
        (f"{{slack: 'https://hooks.example/{SECRET}'}}", "notify[0].slack: is not env:NAME; put"),
        (f"{{webhook: {{url: 'https://{SECRET}'}}}}", "notify[0].webhook: the value is not text"),
        (f"https://hooks.example/{SECRET}", "notify[0]: the value is not a mapping of keys"),
        (f"{{webhook: 'ftp://hooks.example/{SECRET}'}}", "notify[0].webhook: is not env:NAME; put"),
        ("{slack: env:A, on: [stopped]}", "'stopped' is not one of ended, failed, waiting"),
        ("{slack: env:A, on: []}", "notify[0].on: has 0 items but needs at least 1"),
        ("{email: {to: [me], sender: a@b}}", "notify[0].email.to[0]: 'me' is no address"),
    ],
)
def test_wrong_entries_are_told_without_their_url(entry: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        loads(f"{MINIMAL}notify:\n  - {entry}\n")
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_variables_that_are_not_set_are_told_before_a_run_and_refuse_one(tmp_path: Path) -> None:
    for name in ("train.csv", "eval.csv"):
        (tmp_path / name).write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    nodes = {"nodes": [{"id": "a", "sku": "T4", "devices": 2}]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")
    text = f"{MINIMAL}notify: [{{slack: env:MY_HOOK}}]\nsecrets: [MY_WORD]\n"
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    told = "note: MY_WORD, MY_HOOK are not set here; the job names secrets, which have to be set"
    gone = {"MY_HOOK": "", "MY_WORD": ""}
    assert told in call(tmp_path, "validate", "job.yaml", environment=gone).stdout
    planned = call(tmp_path, "plan", "job.yaml", "--inventory", "nodes.json", environment=gone)
    assert told in planned.stdout
    (tmp_path / ".env").write_text(f"MY_HOOK=http://{SECRET}\nMY_WORD=x\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name in gone:
            patch.setenv(name, "")
        done = call(tmp_path, "validate", "job.yaml")
    assert "not set" not in done.stdout
    with pytest.raises(RunError, match=r"notify names NO_HOOK, which is not set"):
        notifications.require_variables(job(notify=[{"slack": "env:NO_HOOK"}]))
