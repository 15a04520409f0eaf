"""`winnow gc`: lists or deletes unused files of a storage, such as those of killed processes."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from jobs.errors import WinnowError
from jobs.spec.quantities import parse_duration
from jobs.storage.storage import open_storage
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, StorageOption, out, print_json, table
from orchestrator.records import garbage

MIB = 2**20


def gc(
    storage: StorageOption = DEFAULT_STORAGE,
    older_than: Annotated[str, typer.Option(help="Keep files modified since, such as 1d.")] = "1d",
    delete: Annotated[bool, typer.Option("--delete", help="Delete the listed files.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the unused files of a storage; --delete removes them."""
    place = open_storage(storage)
    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise WinnowError(f"--older-than: {error}") from None
    found = garbage.find(place, datetime.now(UTC) - age)
    if delete:
        for item in found:
            garbage.delete(place, item)
    if as_json:
        print_json(found)
        return
    shown = table("what", "why", "MiB", left=("what", "why"))
    for item in found:
        shown.add_row(item.place, item.why, f"{item.size / MIB:.1f}")
    if found:
        out().print(shown)
    total = sum(item.size for item in found) / MIB
    done = "deleted" if delete else "can be deleted with --delete"
    summary = f"{len(found)} items, {total:.1f} MiB, {done}"
    out().print(summary if found else f"no unused files in {place}")
