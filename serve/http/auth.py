"""Bearer tokens. A replica has their hashes only, from the environment or from a tokens file."""

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from jobs.errors import DeployError
from jobs.spec.serve import ServeSpec
from jobs.storage import files

RECHECK_S = 1.0
"""Shortest time between two checks whether the tokens file changed."""
TOKEN_BYTES = 32
Scope = Literal["read", "operate"]
"""What a token of the dashboard allows: to see everything, or to change things too."""
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]{0,62})\s+(?P<digest>[0-9a-f]{64})(\s+(?P<scope>read|operate))?"
)
_logger = logging.getLogger(__name__)


def accepted_tokens(spec: ServeSpec) -> list[str]:
    """Returns the bearer tokens in the variable `serve.auth.tokens_from`; empty if it is not set.

    Raises:
        DeployError: if the variable is unset or empty.
    """
    if spec.auth is None or spec.auth.tokens_from is None:
        return []
    tokens = os.environ.get(spec.auth.tokens_from, "").replace(",", " ").split()
    if not tokens:
        raise DeployError(
            f"serve.auth.tokens_from names {spec.auth.tokens_from}, which is not set or empty;"
            " set it to the accepted tokens, separated by spaces or commas"
        )
    return tokens


def hashes_of(spec: ServeSpec) -> list[str]:
    """Returns the hashes of `accepted_tokens`; raises DeployError as it does."""
    return [digest(token) for token in accepted_tokens(spec)]


def digest(token: str) -> str:
    """Returns the SHA-256 of a token in hex, the only form that replicas store."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose token it is, and what it is for."""

    name: str
    scope: Scope | None
    """None for a token of an endpoint."""


def read_tokens(path: Path) -> dict[str, str]:
    """Reads the tokens of an endpoint from a file and returns the names by hash.

    Raises:
        DeployError: as `read_owners` does.
    """
    return {key: each.name for key, each in read_owners(path).items() if each.scope is None}


def read_owners(path: Path) -> dict[str, Owner]:
    """Reads a tokens file, whose lines are `<name> <hash> [<scope>]`; returns owners by hash.

    Raises:
        DeployError: if the file is missing or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DeployError(f"the tokens file {path} cannot be read: {reason}") from None
    owners: dict[str, Owner] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line.strip())
            if match is None:  # the message does not repeat the line, which may contain a token
                raise DeployError(
                    f"line {number} of the tokens file {path} is not a name and a SHA-256 in hex;"
                    " `winnow token add` writes such lines"
                )
            owners[match["digest"]] = Owner(match["name"], cast("Scope | None", match["scope"]))
    return owners


def add_token(path: Path, name: str, scope: Scope | None = None) -> str:
    """Creates a token, writes its name and hash into a tokens file, and returns the token.

    The token itself is stored nowhere. With a scope it is for the dashboard, and no endpoint
    accepts it.

    Raises:
        DeployError: if the name is invalid or the file has it already.
    """
    known = read_owners(path) if path.exists() else {}
    if name in (each.name for each in known.values()):
        raise DeployError(
            f"{path} has a token named {name} already; revoke it first, or choose another name"
        )
    token = secrets.token_urlsafe(TOKEN_BYTES)
    if _LINE.fullmatch(f"{name} {digest(token)}") is None:
        raise DeployError(
            f"{name!r} is not a valid token name; use letters, digits, '.', '_' and '-'"
        )
    _write(path, {**known, digest(token): Owner(name, scope)})
    return token


def revoke_token(path: Path, name: str) -> None:
    """Removes the token of this name from a tokens file.

    Raises:
        DeployError: if the file has no token of this name.
    """
    known = read_owners(path)
    names = [each.name for each in known.values()]
    if name not in names:
        raise DeployError(f"{path} has no token named {name}; it has {', '.join(names)}")
    _write(path, {key: each for key, each in known.items() if each.name != name})


def _write(path: Path, known: Mapping[str, Owner]) -> None:
    lines = (f"{each.name} {key} {each.scope or ''}".rstrip() for key, each in known.items())
    text = "".join(f"{line}\n" for line in lines)
    files.write_atomically(path, text.encode(), mode=0o600)


class Authenticator:
    """Checks the bearer token of a request.

    An endpoint without token hashes and without a tokens file accepts every request.
    """

    def __init__(self, hashes: Sequence[str] = (), file: str = "") -> None:
        """Reads the tokens file.

        Args:
            hashes: SHA-256 of accepted tokens, in hex.
            file: Path of a tokens file; empty for none.

        Raises:
            DeployError: if the tokens file is missing or a line is malformed.
        """
        self._fixed = {key: f"#{key[:8]}" for key in hashes}
        self._file = Path(file) if file else None
        self._file_state: tuple[int, int] | None = None
        self._checked_at, self._last_warning = 0.0, ""
        self._known = dict(self._fixed)
        if self._file:
            self._read(self._file)

    def owner_of(self, authorization: str) -> str | None:
        """Returns the name of the token's owner.

        An empty string if the endpoint needs no token; None if the token is unknown.

        Args:
            authorization: Value of the Authorization header; empty if there is none.
        """
        if self._file is None and not self._fixed:
            return ""
        if self._file and time.monotonic() - self._checked_at > RECHECK_S:
            self._refresh(self._file)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # a client cannot choose the hash of its guess, so the time of the lookup reveals nothing
        return self._known.get(digest(token.strip()))

    def _refresh(self, path: Path) -> None:
        """Reads a changed tokens file.

        If the file is missing or malformed, the tokens stay as they are and each new error is
        logged once.
        """
        try:
            self._read(path)
        except DeployError as error:
            if str(error) != self._last_warning:
                _logger.warning("%s; the tokens that were accepted so far stay accepted", error)
            self._last_warning = str(error)

    def _read(self, path: Path) -> None:
        self._checked_at = time.monotonic()
        try:
            details = path.stat()
            state = details.st_mtime_ns, details.st_ino
        except OSError:
            state = None
        if state is None or state != self._file_state:
            known = read_tokens(path)
            self._file_state, self._known = state, {**known, **self._fixed}
