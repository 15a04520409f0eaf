"""Who hears how a run goes."""

import hashlib
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from jobs.errors import hide_text, shown
from jobs.spec.base import Items, SpecModel

NotifyEvent = Literal["ended", "failed", "waiting", "rollout_stopped"]
ENV = "env:"
"""Before the name of an environment variable whose value is a secret."""
REFERENCE = re.compile(r"^env:[A-Za-z_][A-Za-z0-9_]*$")
ADDRESS = re.compile(r"[^@\s,<>]+@[^@\s,<>]+")
URL = re.compile(r"https?://\S+", re.IGNORECASE)
KINDS = ("slack", "webhook", "email")
_written: dict[str, str] = {}
"""URLs that job files hold, by what stands in the job instead of them."""


def _reference(value: object) -> object:
    """Returns for a URL a name that tells nothing of it, so that no record of the job holds it."""
    if not isinstance(value, str) or not URL.fullmatch(value):
        return value
    name = f"{ENV}WEBHOOK_{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    _written[name] = value
    hide_text(value)
    return name


def url_written_as(reference: str) -> str | None:
    """Returns the URL that a job file of this process holds; None for a variable."""
    return _written.get(reference)


def _named(value: str) -> str:
    if not REFERENCE.fullmatch(value):
        raise ValueError(
            "is not env:NAME; put the URL into a variable, which a file .env may set, and name that"
        )
    return value


def _address(value: str) -> str:
    if not ADDRESS.fullmatch(value):
        raise ValueError(f"{shown(value)} is no address such as team@example.org")
    return value


Reference = Annotated[
    str,
    AfterValidator(_named),
    WithJsonSchema({"type": "string", "pattern": REFERENCE.pattern, "examples": ["env:MY_HOOK"]}),
]
"""An environment variable with a URL, named by `env:NAME`."""
Webhook = Annotated[
    str,
    BeforeValidator(_reference),
    AfterValidator(_named),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"{REFERENCE.pattern}|^https?://",
            "examples": ["env:MY_HOOK", "https://host/path"],
        }
    ),
]
Address = Annotated[str, AfterValidator(_address)]


class EmailSpec(SpecModel):
    """Mail to people, through a server of yours."""

    to: Annotated[Items[Address], Field(min_length=1)]
    """Addresses that get it."""
    sender: Address
    """Address that it comes from."""
    smtp: Reference = "env:SMTP_URL"
    """Variable with the server, such as `smtp://user:password@host:587`, which is asked for
    STARTTLS, or `smtps://user:password@host:465`."""


class NotifySpec(SpecModel):
    """One destination of notifications: slack, webhook or email."""

    slack: Reference | None = None
    """Variable with the URL of an incoming webhook of Slack."""
    webhook: Webhook | None = None
    """Variable with a URL, or the URL, that gets each event as JSON: `event`, `job`, `run`, `title`
    and `text`. No record of a run holds the URL."""
    email: EmailSpec | None = None
    """Mail to people."""
    on: Annotated[Items[NotifyEvent], Field(min_length=1)] = ("ended", "failed", "rollout_stopped")
    """Events: the command that runs the job ended well, or failed; it waits for devices or nodes;
    the gate of a rollout stopped a new version."""

    @property
    def kind(self) -> str:
        """Field that names the destination."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def reference(self) -> str:
        """What stands for its URL."""
        return self.slack or self.webhook or (self.email.smtp if self.email else "")

    @property
    def variable(self) -> str | None:
        """Name of the environment variable with its URL; None for a URL in the job file."""
        is_written = url_written_as(self.reference) is not None
        return None if is_written else self.reference.removeprefix(ENV)

    @model_validator(mode="after")
    def _one_destination(self) -> Self:
        named = [name for name in KINDS if getattr(self, name) is not None]
        if len(named) != 1:
            found = " and ".join(named) or "none"
            raise ValueError(f"names {found}; each entry of notify has one of {', '.join(KINDS)}")
        return self
