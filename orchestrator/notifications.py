"""Tells people and programs how a run goes; a notification that fails is a remark, no failure."""

import contextlib
import logging
import os
import smtplib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

from jobs.errors import RolloutStoppedError, RunError, WinnowError, hide, redacted
from jobs.spec import JobSpec
from jobs.spec.notify import EmailSpec, NotifyEvent, NotifySpec, url_written_as
from orchestrator import interruption
from orchestrator.notices import Notice, Notify, Remark, Waiting
from orchestrator.records import receipt_text
from orchestrator.records.receipt import Receipt
from orchestrator.records.runs import Run

TIMEOUT_S = 10.0
"""How long a destination may take to answer."""
SMTP_PORT, SMTPS_PORT = 587, 465
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts to which a password may go without encryption."""
TITLES: dict[NotifyEvent, str] = {
    "ended": "has ended",
    "failed": "has failed",
    "waiting": "waits",
    "rollout_stopped": "has a new version that was not rolled out",
}


class NotSentError(Exception):
    """Why a notification was not sent, without any URL."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent of an event."""

    event: NotifyEvent
    job: str
    run: str
    """Id of the run; empty for a deployment by itself."""
    text: str

    @property
    def title(self) -> str:
        """A line that says what happened."""
        return f"{self.job} {TITLES[self.event]}"


@contextlib.contextmanager
def sent(spec: JobSpec, run: Run, notify: Notify) -> Iterator[Notify]:
    """Send how the block goes to the job's destinations; yields `notify` that tells of waiting."""

    def send(text: str, *events: NotifyEvent) -> None:
        _send_all(spec, run.id, text, events, notify)

    def tell(notice: Notice) -> None:
        notify(notice)
        if isinstance(notice, Waiting):
            send(notice.text, "waiting")

    try:
        yield tell
    except RolloutStoppedError as error:
        send(f"{error}\n{run.url}", "rollout_stopped", "failed")
        raise
    except Exception as error:
        if not interruption.kind_of(error):
            send(f"{error}\n{run.url}", "failed")
        raise
    send(_result(run), "ended")


@contextlib.contextmanager
def of_rollout(spec: JobSpec, notify: Notify) -> Iterator[None]:
    """Send to the job's destinations if the gate stops the rollout in the block."""
    try:
        yield
    except RolloutStoppedError as error:
        _send_all(spec, "", str(error), ("rollout_stopped",), notify)
        raise


def _result(run: Run) -> str:
    """Returns what a run came to: its receipt, if it has trained a model, and its folder."""
    receipt = None
    with contextlib.suppress(WinnowError):
        receipt = run.read("receipt", Receipt)
    return f"{receipt_text.receipt_text(receipt)}\n\n{run.url}" if receipt else run.url


def _send_all(
    spec: JobSpec, run: str, text: str, events: tuple[NotifyEvent, ...], notify: Notify
) -> None:
    """Send to each destination the first of the events that it is subscribed to."""
    hide(spec.secret_names)
    for place in spec.notify:
        event = next((event for event in events if event in place.on), None)
        if event is None:
            continue
        try:
            send(place, Message(event, spec.name, run, redacted(text)))
        except NotSentError as error:
            notify(Remark(f"notify: {place.kind} was not told that the job {event}: {error}"))


def send(place: NotifySpec, message: Message) -> None:
    """Send one message.

    Raises:
        NotSentError: if it does not arrive.
    """
    url = url_written_as(place.reference) or os.environ.get(place.variable or "")
    if not url:
        raise NotSentError(f"{place.reference} is not set")
    if place.email:
        _mail(place.email, url.strip(), message)
    elif place.slack:
        _post(url.strip(), {"text": f"*{message.title}*\n{message.text}"})
    else:
        values = {"event": message.event, "job": message.job, "run": message.run}
        _post(url.strip(), {**values, "title": message.title, "text": message.text})


def _post(url: str, body: dict[str, str]) -> None:
    import httpx  # takes a tenth of a second, and few jobs need it

    log = logging.getLogger("httpx")  # which writes every URL at INFO
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        answer = httpx.post(url, json=body, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NotSentError(type(error).__name__) from None
    finally:
        log.setLevel(level)
    if not answer.is_success:
        raise NotSentError(f"its server answered {answer.status_code}")


def _mail(spec: EmailSpec, url: str, message: Message) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = message.title, spec.sender, ", ".join(spec.to)
    mail.set_content(message.text)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_safe = parts.scheme == "smtps"
        if not host or parts.scheme not in ("smtp", "smtps"):
            raise NotSentError(f"{spec.smtp} is no URL such as smtp://user:password@host:587")
        with _server(host, port, is_safe=is_safe) as server:
            if not is_safe and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
                server.ehlo()
            elif parts.username and not is_safe and host not in LOOPBACK:
                raise NotSentError("the mail server offers no STARTTLS, so it gets no password")
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        raise NotSentError(f"the mail server answered {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotSentError(type(error).__name__) from None


def _server(host: str, port: int | None, *, is_safe: bool) -> smtplib.SMTP:
    """Returns a connection that has greeted the server."""
    server = (
        smtplib.SMTP_SSL(
            host, port or SMTPS_PORT, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
        if is_safe
        else smtplib.SMTP(host, port or SMTP_PORT, timeout=TIMEOUT_S)
    )
    server.ehlo()
    return server


def require_variables(spec: JobSpec) -> None:
    """Check before a run that every destination has its URL.

    Raises:
        RunError: if a variable is not set.
    """
    missing = [name for name in spec.notify_names if not os.environ.get(name)]
    if missing:
        raise RunError(
            f"notify names {', '.join(missing)}, which is not set; set it in the environment of"
            " `winnow run`, or of the cluster's nodes for `winnow submit`"
        )
