"""Decides which requests the dashboard answers: host, token, scope and origin."""

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cluster.access import LOOPBACK
from jobs.errors import DeployError
from serve.http import auth
from serve.http.auth import Owner

API = "/api/"
"""Everything below this path needs a token; the rest is the page, which holds no data."""
READING = ("GET", "HEAD")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    error: str


class Tokens:
    """The tokens that the dashboard accepts: one for this process, or those of a file."""

    def __init__(self, fixed: Mapping[str, Owner], file: Path | None = None) -> None:
        """Reads the file.

        Args:
            fixed: Owners by SHA-256 of their token.
            file: A tokens file, which is read again when it changes; its tokens without a scope
                are those of an endpoint and are not accepted.

        Raises:
            DeployError: if the file cannot be read or has no token with a scope.
        """
        self._fixed, self._file, self._state = dict(fixed), file, (0, 0)
        self._last_warning = ""
        self._known: Mapping[str, Owner] = self._fixed
        if file:
            self._read(file)
            if not self._known:
                raise DeployError(
                    f"{file} has no token of the dashboard; add one with winnow token add NAME"
                    f" --file {file} --scope read"
                )

    def owner_of(self, authorization: str) -> Owner | None:
        """Returns the owner of the token in an Authorization header; None for no known token."""
        if self._file:
            try:
                self._read(self._file)
            except DeployError as error:
                if str(error) != self._last_warning:
                    _logger.warning("%s; the tokens that were accepted so far stay accepted", error)
                self._last_warning = str(error)
        scheme, _, token = authorization.partition(" ")
        # a client cannot choose the hash of its guess, so the time of the lookup reveals nothing
        return self._known.get(auth.digest(token.strip())) if scheme.lower() == "bearer" else None

    def _read(self, file: Path) -> None:
        try:
            details = file.stat()
            state = details.st_mtime_ns, details.st_ino
        except OSError:
            state = (0, 0)
        if state == self._state and any(state):
            return
        self._state = state
        found = {key: each for key, each in auth.read_owners(file).items() if each.scope}
        self._known = {**found, **self._fixed}


def is_allowed_host(host: str, names: frozenset[str]) -> bool:
    """Returns whether a Host header names this dashboard.

    A page of another site that lets its own name resolve to this machine sends its name, which
    is not among `names`. A literal address cannot be made to resolve anywhere else.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return False
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return not names.issubset(LOOPBACK)


def refusal_of(
    method: str, path: str, headers: Mapping[str, str], owner: Owner | None, names: frozenset[str]
) -> Refusal | None:
    """Returns why a request is refused; None if it is answered.

    Args:
        method: HTTP method.
        path: Path of the URL.
        headers: By name in lower case.
        owner: Of the request's token; None without a known token.
        names: Names of hosts under which the dashboard may be reached.
    """
    host = headers.get("host", "")
    if not is_allowed_host(host, names):
        return Refusal(421, f"the dashboard is not reached as {host!r}; start it with --name")
    if not path.startswith(API):
        return None if method in READING else Refusal(405, "the page can only be read")
    if owner is None:
        return Refusal(401, "a token of the dashboard is needed")
    if method in READING:
        return None
    if not _is_same_origin(headers, host):
        return Refusal(403, "the request comes from a page of another origin")
    if owner.scope != "operate":
        return Refusal(403, f"the token of {owner.name} may read only; scope operate is needed")
    return None


def _is_same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Returns whether a request comes from the dashboard's page, or from no page at all."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == host
