"""Which paths of a job file can be used as they are written."""

import re

from jobs.spec.data import FOLDERS, FORMATS, format_of

HUB_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*", re.ASCII)
OTHER_ENDINGS = (
    *(".txt", ".xlsx", ".xls", ".xml", ".yaml", ".html", ".pkl", ".arrow", ".feather", ".orc"),
    *(".zip", ".tar", ".tgz", ".gz", ".zst", ".bz2", ".xz", ".7z"),
)
"""Of files that no reader takes; a hub id never ends so."""
VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
"""An environment variable as a shell writes it."""
BARE = re.compile(r"\$(\w+)")
"""One without braces, which stands for nothing in a job file."""
HOME = re.compile(r"^\$(HOME|\{HOME\})(?=/)")
"""At the beginning of a path, where ~ means the same."""


def why_unreadable(path: str) -> str:
    """What is wrong with the path of rows, whatever is there; empty if nothing is."""
    scheme, mark, _ = path.partition("://")
    if mark and scheme != "s3":
        return "is a URL; download the file, or put it into a bucket and write s3://bucket/key"
    is_named_for_another = path.lower().endswith(OTHER_ENDINGS)
    is_known = path.startswith(FOLDERS) or has_variable(path) or HUB_ID.fullmatch(path)
    if format_of(path) or (is_known and not is_named_for_another):
        return ""
    return f"is no hub id and no file that ends in {', '.join(FORMATS)}, perhaps with .gz or .zst"


def why_not_literal(path: str) -> str:
    """Why a path with an environment variable is refused, and what to write; else empty."""
    found = VARIABLE.search(path)
    if found is None:
        return ""
    home = HOME.sub("~", path)
    braced = BARE.sub(r"${\1}", home)
    instead = home if not has_variable(home) else "its value" if braced == home else braced
    return (
        f"{path} holds the environment variable {found[0]}, which is not expanded here; write"
        f" {instead}"
    )


def has_variable(path: str) -> bool:
    """Whether a path holds an environment variable."""
    return VARIABLE.search(path) is not None
