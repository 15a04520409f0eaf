"""Bearer tokens: replicas know their hashes alone, from the environment or from a file."""

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.errors import DeployError
from jobs.spec.serve import ServeSpec
from jobs.storage import files

RECHECK_S = 1.0
"""How often a replica looks whether its tokens file changed."""
TOKEN_BYTES = 32
_LINE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,62})\s+(?P<digest>[0-9a-f]{64})")
_logger = logging.getLogger(__name__)


def accepted_tokens(spec: ServeSpec) -> list[str]:
    """Bearer tokens from the environment, none for an open endpoint; they stay in this process."""
    if spec.auth is None or spec.auth.tokens_from is None:
        return []
    tokens = os.environ.get(spec.auth.tokens_from, "").replace(",", " ").split()
    if not tokens:
        raise DeployError(
            f"serve.auth.tokens_from names {spec.auth.tokens_from}, which is not set or empty;"
            " put the accepted tokens into it, with spaces or commas between"
        )
    return tokens


def hashes_of(spec: ServeSpec) -> list[str]:
    """Hashes of the tokens in the environment. Raises DeployError without the tokens it needs."""
    return [digest(token) for token in accepted_tokens(spec)]


def digest(token: str) -> str:
    """What replicas know of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> dict[str, str]:
    """Names by hash, from lines of both; raises DeployError where the file is missing or wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DeployError(f"the tokens file {path} cannot be read: {reason}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line.strip())
            if match is None:  # its content stays untold: it may be a token
                raise DeployError(
                    f"line {number} of the tokens file {path} is not a name and a SHA-256 in hex;"
                    " `winnow token add` writes such lines"
                )
            found[match["digest"]] = match["name"]
    return found


def add_token(path: Path, name: str) -> str:
    """Make a token, keep its name and hash in a file, and return it: it is nowhere else.

    Raises DeployError for a name that is there already or is none.
    """
    known = read_tokens(path) if path.exists() else {}
    if name in known.values():
        raise DeployError(f"{path} has a token named {name}; revoke it first, or take another name")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    if _LINE.fullmatch(f"{name} {digest(token)}") is None:
        raise DeployError(f"{name!r} is no name of a token; use letters, digits, '.', '_' and '-'")
    _write(path, {**known, digest(token): name})
    return token


def revoke_token(path: Path, name: str) -> None:
    """Take a token out of a file; DeployError where there is none of that name."""
    known = read_tokens(path)
    if name not in known.values():
        raise DeployError(f"{path} has no token named {name}; it has {', '.join(known.values())}")
    _write(path, {key: value for key, value in known.items() if value != name})


def _write(path: Path, known: Mapping[str, str]) -> None:
    text = "".join(f"{name} {key}\n" for key, name in known.items())
    files.write_atomically(path, text.encode(), mode=0o600)


class Access:
    """Who may ask an endpoint; everybody where it knows of no token and has no file of them."""

    def __init__(self, hashes: Sequence[str] = (), file: str = "") -> None:
        """Raises DeployError when the file cannot be used."""
        self._fixed = {key: f"#{key[:8]}" for key in hashes}
        self._file = Path(file) if file else None
        self._seen: tuple[int, int] | None = None
        self._looked, self._told = 0.0, ""
        self._known = dict(self._fixed)
        if self._file:
            self._read(self._file)

    def name_of(self, authorization: str) -> str | None:
        """Of the token in an Authorization header, empty at an open endpoint; None for nobody's."""
        if self._file is None and not self._fixed:
            return ""
        if self._file and time.monotonic() - self._looked > RECHECK_S:
            self._refresh(self._file)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # looked up by its hash, which nobody can steer towards a known one: time tells nothing
        return self._known.get(digest(token.strip()))

    def _refresh(self, path: Path) -> None:
        """Take over a changed file; one that is gone or wrong changes nothing, and is told of."""
        try:
            self._read(path)
        except DeployError as error:
            if str(error) != self._told:
                _logger.warning("%s; the tokens known so far stay", error)
            self._told = str(error)

    def _read(self, path: Path) -> None:
        self._looked = time.monotonic()
        try:
            details = path.stat()
            mark = details.st_mtime_ns, details.st_ino
        except OSError:
            mark = None
        if mark is None or mark != self._seen:
            known = read_tokens(path)
            self._seen, self._known = mark, {**known, **self._fixed}
