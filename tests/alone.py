"""Commands on a machine where nothing is up: with a network and processes of their own."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))),
    reason="namespaces take root, iproute2 and util-linux",
)


def run(
    script: str,
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float = 500,
) -> "subprocess.CompletedProcess[str]":
    """A bash script, ended by its first error; all that it starts ends with it."""
    text = f"set -euo pipefail\nip link set lo up\n{script}"
    words = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", text, "bash"]
    return subprocess.run(
        [*words, *arguments],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
