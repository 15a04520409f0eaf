"""Names the user on whose behalf this process works, for the journals of runs."""

import getpass
import os
import socket

VARIABLE = "WINNOW_USER"
"""Environment variable that names the user, such as of a submitted job."""


def owner() -> str:
    """Returns the content of WINNOW_USER, else user and host of this process: alice@laptop."""
    if named := os.environ.get(VARIABLE):
        return named
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container may know no name for its user's number
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
