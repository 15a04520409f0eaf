"""Look up known vulnerabilities of the packages that the image installs.

    python -m venv build/audit && build/audit/bin/pip install pip-audit
    python infra/audit.py build/audit/bin/python

Exits with 1 if a package has one. If the database of advisories cannot be reached it prints a
warning and exits with 0, although nothing was checked.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cluster import exposure  # noqa: E402 - runs from a clone, installed or not

LOCK = Path(__file__).parent / "image/requirements.lock"


def main() -> int:
    """Print the findings; returns 1 if a package has a known vulnerability."""
    options = ("--requirement", str(LOCK), "--require-hashes", "--disable-pip")
    findings = tuple(exposure.advisories(sys.argv[1], *options))
    for finding in findings:
        print(f"AUDIT {finding.severity}: {finding.message}")
    return 1 if any(finding.severity == "error" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
