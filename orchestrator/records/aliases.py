"""Aliases of model versions, moved by compare-and-swap, with their history."""

import json
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from jobs.errors import RunError, StorageError
from jobs.storage.objects import Objects

KEPT = 1000
"""Moves kept in the history."""
SWAP_TIMEOUT_S = 120.0
"""How long a move is retried while other processes move the alias."""
LONGEST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Move:
    """One change of an alias."""

    number: int
    """1 for the first."""
    version: str
    operation: str
    """Id of the move, so that a retry after a lost response does not move twice."""
    time: str
    by: str = ""
    """User and host that moved it; empty for a move of an older release."""


MOVES = TypeAdapter(tuple[Move, ...])


def history(objects: Objects, name: str, alias: str) -> tuple[Move, ...]:
    """Returns the moves of an alias, the newest last; empty before the first move."""
    found = objects.read(_key(name, alias))
    return _parse(name, alias, found.content) if found else ()


def move(
    objects: Objects,
    name: str,
    alias: str,
    choose: Callable[[Sequence[str]], str],
    *,
    operation: str | None = None,
    by: str = "",
) -> Move:
    """Point an alias to the version that `choose` returns for its earlier versions, oldest first.

    `choose` is called again if another process moved the alias meanwhile. A repeated `operation`
    has no effect. If the alias points to the version already, nothing is written.

    Raises:
        StorageError: if other processes keep moving the alias.
        RunError: if the alias file is damaged.
    """
    operation = operation or secrets.token_hex(8)
    deadline = time.monotonic() + SWAP_TIMEOUT_S
    while time.monotonic() < deadline:
        found = objects.read(_key(name, alias))
        moves = _parse(name, alias, found.content) if found else ()
        done = next((made for made in moves if made.operation == operation), None)
        if done:
            return done
        version = choose([made.version for made in moves])
        if moves and moves[-1].version == version:
            return moves[-1]
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        made = Move(moves[-1].number + 1 if moves else 1, version, operation, now, by)
        content = json.dumps([asdict(each) for each in (*moves, made)][-KEPT:]).encode()
        if objects.swap(_key(name, alias), content, found.tag if found else None):
            return made
        time.sleep(random.uniform(0, LONGEST_PAUSE_S))
    raise StorageError(f"other processes keep moving {alias} of {name}; try again later")


def previous(name: str, versions: Sequence[str]) -> str:
    """Returns the version that was deployed before the present one, for a rollback.

    Raises:
        RunError: if there is no earlier version.
    """
    older = [version for version in versions if version != versions[-1]]
    if not older:
        raise RunError(f"no other version of {name} was deployed before; use winnow models promote")
    return older[-1]


def _parse(name: str, alias: str, content: bytes) -> tuple[Move, ...]:
    try:
        return MOVES.validate_json(content)
    except ValidationError:
        raise RunError(f"{alias} of {name} was altered and cannot be read") from None


def _key(name: str, alias: str) -> str:
    return f"models/{name}/{alias}.json"
